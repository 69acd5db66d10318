"""Linear attention against the recurrence that it stands for, token by token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.lightning_attention import LinearAttention
from tests.fakes.random_weights import fill
from tests.fakes.state_layers import (
    empty,
    in_chunks,
    ragged,
    run,
)

pytestmark = pytest.mark.usefixtures("seeded")
CPU = torch.device("cpu")
SETTINGS = spec.LinearAttention(3, 8, (0.5, 0.1, 1e-3), spec.Norm(1e-6))
Weights = dict[str, Tensor]


def made(context: BuildContext) -> tuple[LinearAttention, Weights]:
    layer = LinearAttention(SETTINGS, 10, context)
    return layer, fill(layer)


def recurrent(x: Tensor, w: Weights) -> Tensor:
    """One text [T, hidden]: a state that every token changes."""
    query, key, value = (
        F.silu(x @ w[f"{role}.weight"].T).view(-1, 3, 8) for role in ("query", "key", "value")
    )
    state, rows = torch.zeros(3, 8, 8), list[Tensor]()
    left = torch.tensor([math.exp(-rate) for rate in SETTINGS.decays])[:, None, None]
    for q, k, v in zip(query, key, value, strict=True):
        state = left * state + k[:, :, None] * v[:, None]
        rows.append((q[:, None] @ state).flatten())
    normed = F.rms_norm(torch.stack(rows), (24,), w["linear_norm.weight"], 1e-6)
    gated = torch.sigmoid(x @ w["linear_gate.weight"].T) * normed
    return gated @ w["linear_output.weight"].T


@pytest.mark.parametrize("chunk", [1, 7, 16, 70])
@pytest.mark.parametrize("page_size", [1, 4, 24, 32])
def test_a_text_in_chunks_is_the_recurrence(
    context: BuildContext, chunk: int, page_size: int
) -> None:
    layer, weights = made(context)
    x = torch.randn(70, 10)
    out = in_chunks(layer, SETTINGS, x, chunk, page_size)
    torch.testing.assert_close(out, recurrent(x, weights), atol=2e-4, rtol=2e-4)


def test_texts_of_a_ragged_step_do_not_mix(context: BuildContext) -> None:
    layer, weights = made(context)
    texts = [torch.randn(length, 10) for length in (21, 9, 4, 13)]
    for text, ours in zip(texts, ragged(layer, SETTINGS, texts, (20, 3, 0, 8)), strict=True):
        torch.testing.assert_close(ours, recurrent(text, weights), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_depend_on_no_cut_and_no_neighbour(context: BuildContext, dtype: torch.dtype) -> None:
    """From queries, keys and values on, beside texts of other lengths."""
    layer, _ = made(replace(context, dtype=dtype))
    bare, projected, results = layer_without_products(layer), torch.randn(72, 72).to(dtype), []
    for cut in (0, 1, 16, 33, 69):
        pages, parts = empty(SETTINGS, 20, 16), list[Tensor]()
        pages = Snapshots(pages.tokens.to(dtype), pages.states)
        for begin, end in ((0, cut), (cut, 70)):
            if begin == end:
                continue
            tables, texts = [[9, 3, 7, 1, 5], [0, 2, 4, 6, 8]], [projected[begin:end]]
            parts.append(run(bare, [*texts, projected[70:]], [begin, 0], tables, pages)[0])
        results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


def layer_without_products(layer: LinearAttention) -> Any:
    """What comes out of the projections is made once: their bits are not looked at here."""
    bare: Any = layer
    bare.project, bare.gate, bare.output = torch.nn.Identity(), Third(), Third()
    return bare


class Third(torch.nn.Module):
    """In the place of a projection: a third of what it is given, if that is not one already."""

    def forward(self, x: Tensor, residual: None = None) -> Tensor:
        return x[:, :24]


def test_what_comes_later_in_a_page_counts_nothing(context: BuildContext) -> None:
    """A copied page holds tokens of somebody else behind those that it was copied for."""
    layer, weights = made(context)
    x, pages = torch.randn(6, 10), empty(SETTINGS, 3, 4)
    run(layer, [x[:5]], [0], [[2, 0]], pages)
    pages.tokens[0, 1:] = 1e4
    [row] = run(layer, [x[5:]], [5], [[2, 0]], pages)
    torch.testing.assert_close(row, recurrent(x, weights)[5:], atol=2e-4, rtol=2e-4)
