"""The selective scan against the recurrence that it stands for, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.kv_pages import scatter
from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.mamba import Mamba
from tests.fakes.random_weights import fill
from tests.fakes.state_layers import (
    empty,
    in_chunks,
    planned,
    ragged,
    run,
)

pytestmark = [
    pytest.mark.usefixtures("seeded", "form"),
    pytest.mark.row("F04.19", "F07.01", "F07.03", "F07.04"),
]
CPU = torch.device("cpu")
PLAIN = spec.Mamba(channels=6, state_size=5, step_rank=3, taps=4, bias=True)
NORMED = spec.Mamba(6, 5, 3, taps=2, conv_bias=False, norm=spec.Norm(1e-2))
Weights = dict[str, Tensor]


@pytest.fixture(params=["compiled", "stepwise"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stepwise":
        monkeypatch.setattr(CpuScan, "refuses", lambda dtype, device: "it is not wanted")
    elif reason := CpuScan.refuses(torch.float32, CPU):
        pytest.skip(reason)


def made(
    context: BuildContext, settings: spec.Mamba = PLAIN, slower: float = 4
) -> tuple[Mamba, Weights]:
    """With rates so slow that a state outlives many pages."""
    layer = Mamba(settings, 10, context)
    weights = fill(layer)
    layer.taps.process_weights_after_loading()
    weights["scan_rates"] -= slower
    layer.dynamics.rates.copy_(weights["scan_rates"])
    layer.dynamics.process_weights_after_loading()
    return layer, weights


def linear(x: Tensor, w: Weights, role: str) -> Tensor:
    return F.linear(x, w[f"{role}.weight"], w.get(f"{role}.bias"))


def recurrent(x: Tensor, w: Weights, settings: spec.Mamba = PLAIN) -> Tensor:
    """One text [T, hidden]: a state [channels, state_size] that every token changes."""
    inner, taps = linear(x, w, "scan_input").T[None], settings.taps
    mixed = F.conv1d(F.pad(inner, (taps - 1, 0)), w["conv.weight"], w.get("conv.bias"), groups=6)
    mixed = F.silu(mixed[0].T)
    parts = linear(mixed, w, "scan_select").split((3, 5, 5), dim=-1)
    if settings.norm is not None:
        weights = [w[f"scan_{role}_norm.weight"] for role in ("step", "write", "read")]
        parts = tuple(
            F.rms_norm(part, part.shape[-1:], weight, settings.norm.eps)
            for part, weight in zip(parts, weights, strict=True)
        )
    steps = F.softplus(linear(parts[0], w, "scan_step"))
    state, rows, rates = torch.zeros(6, 5), list[Tensor](), -w["scan_rates"].exp()
    for token, step, write, read in zip(mixed, steps, *parts[1:], strict=True):
        state = state * (step[:, None] * rates).exp() + (step * token)[:, None] * write
        rows.append(state @ read + w["scan_skip"] * token)
    return linear(torch.stack(rows) * F.silu(linear(x, w, "scan_gate")), w, "scan_output")


@pytest.mark.parametrize("settings", [PLAIN, NORMED], ids=["plain", "normed"])
@pytest.mark.parametrize("chunk", [1, 7, 16, 70])
@pytest.mark.parametrize("page_size", [1, 4, 24, 32])
def test_a_text_in_chunks_is_the_recurrence(
    context: BuildContext, chunk: int, page_size: int, settings: spec.Mamba
) -> None:
    layer, weights = made(context, settings)
    x = torch.randn(70, 10)
    out, expected = in_chunks(layer, settings, x, chunk, page_size), recurrent(x, weights, settings)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    assert (expected - recurrent(x[-40:], weights, settings)[-1]).abs().max() > 0.01


def test_texts_of_a_ragged_step_do_not_mix(context: BuildContext) -> None:
    """More of them than walk at once, and each as far as it has come."""
    layer, weights = made(context)
    texts = [torch.randn(length, 10) for length in (21, 9, 4, 13, *range(1, 31))]
    cuts = (20, 3, 0, 8, *range(30))
    for text, ours in zip(texts, ragged(layer, PLAIN, texts, cuts), strict=True):
        torch.testing.assert_close(ours, recurrent(text, weights), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("page_size", [3, 16])
def test_bits_depend_on_no_cut_and_no_neighbour(context: BuildContext, page_size: int) -> None:
    """From the inputs of the scan on, in which the last channels fill no vector of the CPU's."""
    settings = spec.Mamba(channels=37, state_size=7, step_rank=3, taps=1)
    layer, _ = made(context, settings, slower=1)
    inputs, read = torch.randn(70, 3 * 37 + 7), torch.randn(70, 7)
    results = list[Tensor]()
    for number, cut in enumerate((0, 1, 16, 33, 69)):
        pages, parts = empty(settings, 60, page_size), list[Tensor]()
        for begin, end in ((0, cut), (cut, 70)):
            if begin == end:
                continue
            mine = [(7 * block + number) % 30 for block in range(24)]
            others = [[30 + row] * 24 for row in range(3 * number)]
            starts, counts = [begin, *[0] * len(others)], [end - begin, *[2] * len(others)]
            batch = AttentionBatch.build(counts, starts, [mine, *others], page_size, CPU)
            more = torch.randn(2 * len(others), inputs.shape[1])
            new = torch.cat((inputs[begin:end], more))
            scatter(new[:, None, None], batch.slot_mapping, pages.tokens)
            walks = planned(layer, batch)
            reads = torch.cat((read[begin:end], torch.randn(len(more), 7)))
            parts.append(layer._scan(pages, reads, walks)[: end - begin])
        results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


def test_what_comes_later_in_a_page_counts_nothing(context: BuildContext) -> None:
    """A copied page holds tokens of somebody else behind those that it was copied for."""
    layer, weights = made(context)
    x, pages = torch.randn(6, 10), empty(PLAIN, 3, 4)
    run(layer, [x[:5]], [0], [[2, 0]], pages)
    pages.tokens[0, 1:] = 3e38
    [row] = run(layer, [x[5:]], [5], [[2, 0]], pages)
    torch.testing.assert_close(row, recurrent(x, weights)[5:], atol=1e-4, rtol=1e-4)


def test_a_page_may_be_a_part_of_something_larger(context: BuildContext) -> None:
    """As where layers of other shapes share the memory."""
    layer, weights = made(context)
    memory, x = torch.zeros(3, 200), torch.randn(9, 10)
    pages = Snapshots(
        memory[:, 10:102].unflatten(1, (4, 1, 1, 23)), memory[:, 110:140].unflatten(1, (5, 6))
    )
    rows = [
        *run(layer, [x[:5]], [0], [[2, 0]], pages),
        *run(layer, [x[5:]], [5], [[2, 0, 1]], pages),
    ]
    torch.testing.assert_close(torch.cat(rows), recurrent(x, weights), atol=1e-4, rtol=1e-4)
    assert not memory[:, :10].any() and not memory[:, 102:110].any() and not memory[:, 140:].any()


def test_what_drives_states_is_float32_in_every_model(context: BuildContext) -> None:
    layer, _ = made(replace(context, dtype=torch.bfloat16))
    assert layer.taps.weight.dtype is torch.bfloat16
    assert {weight.dtype for weight in layer.dynamics.parameters()} == {torch.float32}
    assert layer.dynamics.rates.shape == PLAIN.state and (layer.dynamics.rates < 0).all()
