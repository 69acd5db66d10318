"""Delta nets against the recurrence that they stand for, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.recurrent.delta import CpuDelta
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.delta_inputs import Inputs
from baton_worker.layers.ssm.delta_net import DeltaNet
from tests.fakes.random_weights import fill
from tests.fakes.state_layers import (
    empty,
    in_chunks,
    ragged,
    run,
)

pytestmark = pytest.mark.usefixtures("seeded", "form")
CPU = torch.device("cpu")
NORM = spec.GatedNorm(1e-6, 4, gate_first=False, shared=True)
GATED = spec.DeltaNet(2, 4, 6, 8, 4, NORM, strength=2.0)
KIMI = spec.DeltaNet(4, 4, 8, 8, 3, replace(NORM, activation="sigmoid"), rank=5)
KINDS = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(GATED, id="gated", marks=pytest.mark.row("F04.18")),
        pytest.param(KIMI, id="kimi", marks=pytest.mark.row("F23.06")),
    ],
)
Weights = dict[str, Tensor]


class Instead(torch.nn.Module):
    """A part of a layer that is not what is tested."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


@pytest.fixture(params=["compiled", "blockwise"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "blockwise":
        monkeypatch.setattr(CpuDelta, "refuses", lambda dtype, device: "it is not wanted")
    elif reason := CpuDelta.refuses(torch.float32, CPU):
        pytest.skip(reason)


def made(settings: spec.DeltaNet, context: BuildContext) -> tuple[DeltaNet, Weights]:
    layer = DeltaNet(settings, 10, context)
    weights = fill(layer)
    # Some heads forget within a few tokens, others hardly in all the text.
    layer.taps.process_weights_after_loading()
    layer.norm.process_weights_after_loading()
    rates = torch.linspace(-5, 1, 4).view_as(layer.decays.rate)
    layer.decays.rate.copy_(rates)
    return layer, weights | {"delta.A_log": rates}


def convolved(x: Tensor, w: Weights, settings: spec.DeltaNet) -> list[Tensor]:
    """Queries, keys and values of a text, [T, heads, dim] each."""
    found = list[Tensor]()
    for role in ("query", "key", "value"):
        row = F.pad((x @ w[f"delta_{role}.weight"].T).T, (settings.taps - 1, 0))
        taps = w[f"delta_{role}_conv.weight"]
        dim = settings.value_dim if role == "value" else settings.key_dim
        mixed = F.silu(F.conv1d(row[None], taps, groups=len(taps))[0].T)
        found.append(mixed.view(len(x), -1, dim))
    return found


def recurrent(x: Tensor, w: Weights, settings: spec.DeltaNet) -> Tensor:
    """One text [T, hidden]: a state that every token decays and corrects."""
    query, key, value = convolved(x, w, settings)
    times = settings.num_heads // settings.num_key_heads
    query, key = (
        (one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(times, 1)
        for one in (query, key)
    )
    narrow = {"gate": x, "decay": x}
    if settings.rank is not None:
        narrow = {role: x @ w[f"delta_{role}_down.weight"].T for role in narrow}
    strength = settings.strength * (x @ w["delta_strength.weight"].T).sigmoid()
    raised = F.softplus(narrow["decay"] @ w["delta_decay.weight"].T + w["delta.dt_bias"])
    left = (-w["delta.A_log"].exp().view(4, 1) * raised.view(len(x), 4, -1)).exp()
    state, rows = torch.zeros(settings.state), list[Tensor]()
    for q, k, v, b, a in zip(query, key, value, strength, left, strict=True):
        state = a[..., None] * state
        news = b[:, None] * (v - (k[:, None] @ state)[:, 0])
        state = state + k[..., None] * news[:, None]
        rows.append((q[:, None] @ state)[:, 0] * settings.key_dim**-0.5)
    normed = F.rms_norm(torch.stack(rows), (settings.value_dim,), w["delta_norm.weight"], 1e-6)
    gate = narrow["gate"] @ w["delta_gate.weight"].T
    opened = gate.sigmoid() if settings.norm.activation == "sigmoid" else F.silu(gate)
    return (normed.flatten(1) * opened) @ w["delta_output.weight"].T


@pytest.mark.row("F07.13")
@KINDS
@pytest.mark.parametrize("chunk", [1, 7, 16, 70])
@pytest.mark.parametrize("page_size", [1, 4, 24, 32])
def test_a_text_in_chunks_is_the_recurrence(
    context: BuildContext, settings: spec.DeltaNet, chunk: int, page_size: int
) -> None:
    layer, weights = made(settings, context)
    x = torch.randn(70, 10)
    out = in_chunks(layer, settings, x, chunk, page_size)
    torch.testing.assert_close(out, recurrent(x, weights, settings), atol=1e-4, rtol=1e-4)


@KINDS
def test_texts_of_a_ragged_step_do_not_mix(context: BuildContext, settings: spec.DeltaNet) -> None:
    layer, weights = made(settings, context)
    texts = [torch.randn(length, 10) for length in (21, 9, 4, 13)]
    for text, ours in zip(texts, ragged(layer, settings, texts, (20, 3, 0, 8)), strict=True):
        torch.testing.assert_close(ours, recurrent(text, weights, settings), atol=1e-4, rtol=1e-4)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [16, 32])
def test_bits_depend_on_no_cut_and_no_neighbour(
    context: BuildContext, settings: spec.DeltaNet, page_size: int, dtype: torch.dtype
) -> None:
    """From what the projections put out on, beside texts of other lengths."""
    layer, _ = made(settings, replace(context, dtype=dtype))
    width = settings.convolved + settings.num_heads + settings.decays
    brought = torch.randn(72, width).to(dtype)
    layer.inputs = Instead(lambda at: Inputs(brought[at], (), at))
    layer.norm, layer.output = Instead(lambda seen, _: seen), Instead(lambda seen, _: seen)
    results = list[Tensor]()
    for cut in (0, 1, 16, 33, 69):
        full = empty(settings, 20, page_size)
        pages, parts = Snapshots(full.tokens.to(dtype), full.states), list[Tensor]()
        for begin, end in ((0, cut), (cut, 70)):
            if begin < end:
                texts = [torch.arange(begin, end), torch.arange(70, 72)]
                tables = [[9, 3, 7, 1, 5], [0, 2, 4, 6, 8]]
                parts.append(run(layer, texts, [begin, 0], tables, pages)[0])
        results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


@KINDS
@pytest.mark.parametrize("page_size", [4, 32])
def test_what_comes_later_in_a_page_counts_nothing(
    context: BuildContext, settings: spec.DeltaNet, page_size: int
) -> None:
    """A copied page holds tokens of somebody else behind those that it was copied for; where it is
    not written yet it may hold anything finite."""
    layer, weights = made(settings, context)
    x, pages, table = torch.randn(6, 10), empty(settings, 3, page_size), [[2, 0]]
    last = 0 if page_size == 4 else 2
    run(layer, [x[:5]], [0], table, pages)
    for stale in (1e4, -1e4, 3e38):
        pages.tokens[last, 5 % page_size :] = stale
        [row] = run(layer, [x[5:]], [5], table, pages)
        expected = recurrent(x, weights, settings)[5:]
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)


def test_a_page_keeps_what_a_token_brings_and_a_state_of_each_head() -> None:
    raw, convolved = 2 * 12 + 32, 12 + 32
    assert GATED.row == (1, 1, raw + convolved + 4 + 4) and GATED.state == (4, 6, 8)
    assert KIMI.row == (1, 1, 3 * 32 + 2 * 32 + 4 + 32) and KIMI.state == (4, 8, 8)
    # A token reads the page before its own, and what the convolution does.
    assert [GATED.span(size) for size in (1, 2, 16)] == [4, 4, 17]


def test_parts_of_the_convolution_are_tensors_of_their_own(context: BuildContext) -> None:
    layer, weights = made(GATED, context)
    parts = [weights[f"delta_{role}_conv.weight"] for role in ("query", "key", "value")]
    assert [part.shape for part in parts] == [(12, 1, 4), (12, 1, 4), (32, 1, 4)]
    assert torch.equal(torch.cat(parts), layer.taps.weight)
