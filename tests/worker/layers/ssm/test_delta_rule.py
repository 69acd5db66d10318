"""Blocks of tokens against one token at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker.layers.ssm.delta_rule import Tokens, solve, unit

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F07.13")]
HEADS, KEY, VALUE = 3, 6, 5


def some(count: int, size: int, channels: int, scale: float) -> tuple[Tokens, Tensor, Tensor]:
    """Tokens of so many texts, queries, and the states before them."""
    shape = (count, HEADS, size)
    tokens = Tokens(
        unit(torch.randn(*shape, KEY)),
        torch.randn(*shape, VALUE),
        2 * torch.rand(*shape, 1),
        -scale * torch.rand(*shape, channels),
    )
    return tokens, torch.randn(*shape, KEY), torch.randn(count, HEADS, KEY, VALUE)


def pass_over(tokens: Tokens, query: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    solved = solve(tokens, query, state)
    return solved.out(), solved.after()


def one_by_one(tokens: Tokens, query: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """In float64."""
    rows, state = list[Tensor](), state.double()
    for t in range(query.shape[2]):
        key, value, strength, decay = (part[:, :, t].double() for part in tokens)
        state = decay.exp()[..., None] * state
        seen = torch.einsum("nhk,nhkv->nhv", key, state)
        state = state + torch.einsum("nhk,nhv->nhkv", key, strength * (value - seen))
        rows.append(torch.einsum("nhk,nhkv->nhv", query[:, :, t].double(), state))
    return torch.stack(rows, dim=2).float(), state.float()


@pytest.mark.parametrize("channels", [1, KEY], ids=["gated", "kimi"])
@pytest.mark.parametrize("size", [1, 2, 16])
@pytest.mark.parametrize("scale", [0.0, 0.1, 2.0, 1000.0])
def test_a_block_is_its_tokens_in_turn(channels: int, size: int, scale: float) -> None:
    """Also where all is forgotten at once: there a quotient of decays would be 0 / 0."""
    given = some(2, size, channels, scale)
    for ours, expected in zip(pass_over(*given), one_by_one(*given), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("channels", [1, KEY], ids=["gated", "kimi"])
def test_one_channel_may_remember_what_the_others_forget(channels: int) -> None:
    tokens, query, state = some(1, 16, channels, 1.0)
    tokens.decay[..., 0] = 0
    tokens.decay[..., 1:] = -200
    given = (tokens, query, state)
    for ours, expected in zip(pass_over(*given), one_by_one(*given), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("channels", [1, KEY], ids=["gated", "kimi"])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_texts_and_later_tokens_change_no_bit(channels: int, size: int) -> None:
    tokens, query, state = some(5, size, channels, 1.0)
    first = -(-size // 2)
    out, after = pass_over(tokens, query, state)
    for text in range(5):
        alone = Tokens(*(part[text : text + 1].clone() for part in tokens))
        asked, before = query[text : text + 1].clone(), state[text : text + 1].clone()
        ours, left = pass_over(alone, asked, before)
        assert torch.equal(ours[0], out[text]) and torch.equal(left[0], after[text])
        for part in alone:
            part[:, :, first:] = 0
        again, _ = pass_over(alone, asked, before)
        assert torch.equal(again[0, :, :first], out[text, :, :first])


def test_vectors_are_divided_by_their_length() -> None:
    x = torch.randn(4, 3, 7)
    torch.testing.assert_close(unit(x), x / (x.norm(dim=-1, keepdim=True) ** 2 + 1e-6).sqrt())
    assert not unit(torch.zeros(2, 7)).any()
