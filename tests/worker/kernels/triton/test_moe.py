"""The fused expert kernel against its twin, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.moe.dispatch import dispatch
from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.moe.loop import LoopExperts

GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def fused(interpreted: None) -> ModuleType:
    """The kernel, interpreted where there is no GPU."""
    return import_module("baton_worker.kernels.triton.moe")


def experts(num: int, hidden: int, size: int, *, bias: bool, weigh_input: bool) -> Experts:
    generator = torch.Generator().manual_seed(num)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to("cuda" if GPU else "cpu")

    return Experts(
        random(num, 2 * size, hidden),
        random(num, hidden, size),
        random(num, 2 * size) if bias else None,
        random(num, hidden) if bias else None,
        lambda inner: F.silu(inner[..., :size]) * inner[..., size:],
        weigh_input,
    )


@pytest.mark.row("F06.01", "F06.16", "F21.08")
@pytest.mark.parametrize(
    ("num", "slots", "num_tokens", "hidden", "size", "bias", "weigh_input"),
    [
        (8, 2, 1, 64, 64, False, False),
        (8, 2, 45, 70, 33, True, False),
        (3, 3, 40, 16, 130, False, True),
        (64, 4, 5, 32, 24, True, True),
        (1, 1, 7, 8, 8, False, False),
    ],
)
def test_equals_the_loop(
    fused: ModuleType,
    num: int,
    slots: int,
    num_tokens: int,
    hidden: int,
    size: int,
    bias: bool,
    weigh_input: bool,
) -> None:
    layer = experts(num, hidden, size, bias=bias, weigh_input=weigh_input)
    generator = torch.Generator().manual_seed(1)
    chosen = torch.rand((num_tokens, num), generator=generator).argsort(-1)[:, :slots]
    chosen[0, 0], chosen[-1, -1] = -1, num
    weights = torch.rand((num_tokens, slots), generator=generator)
    x = torch.randn((num_tokens, hidden), generator=generator)
    x, chosen, weights = (t.to(layer.down.device) for t in (x, chosen, weights))
    expected = LoopExperts(layer)(x, chosen, weights)
    ours = fused.forward(layer, x, chosen, weights)
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.row("F06.02", "F06.16")
def test_blocks_hold_every_visit_once_and_one_expert_each(fused: ModuleType) -> None:
    generator = torch.Generator().manual_seed(2)
    chosen = torch.randint(-1, 7, (50, 3), generator=generator)
    visits, owners = fused.blocks(chosen, 6)
    rows = visits.view(-1, fused.BLOCK_ROWS)
    seen = []
    for row, owner in zip(rows.tolist(), owners.tolist(), strict=True):
        real = [visit for visit in row if visit >= 0]
        assert not real or owner < 6
        assert all(chosen.flatten()[visit] == owner for visit in real)
        seen += real
    assert seen == dispatch(chosen, 6).visits.tolist()


def test_a_token_gets_the_same_bits_beside_any_others(fused: ModuleType) -> None:
    layer = experts(4, 32, 24, bias=False, weigh_input=False)
    x = torch.randn(20, 32, device=layer.down.device)
    chosen = torch.rand(20, 4, device=x.device).argsort(-1)[:, :2]
    weights = torch.rand(20, 2, device=x.device)
    together = fused.forward(layer, x, chosen, weights)
    for row in range(20):
        one = slice(row, row + 1)
        assert torch.equal(fused.forward(layer, x[one], chosen[one], weights[one]), together[one])
