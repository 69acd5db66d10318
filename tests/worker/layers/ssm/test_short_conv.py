"""The short convolution against `torch.nn.functional.conv1d` over whole texts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.ssm.short_conv import Reach, ShortConv
from tests.fakes.random_weights import fill
from tests.fakes.state_layers import planned

pytestmark = pytest.mark.usefixtures("seeded")
CPU = torch.device("cpu")
SETTINGS = spec.ShortConv(channels=6, taps=4, bias=True)
Weights = dict[str, Tensor]


def made(context: BuildContext, settings: spec.ShortConv = SETTINGS) -> tuple[ShortConv, Weights]:
    layer = ShortConv(settings, 8, context)
    weights = fill(layer)
    layer.taps.process_weights_after_loading()
    return layer, weights


def whole(x: Tensor, w: Weights) -> Tensor:
    """One text [T, hidden] at once."""

    def through(role: str) -> Tensor:
        return x @ w[f"{role}.weight"].T + w[f"{role}.bias"]

    inner = (through("conv_before") * through("conv_input")).T
    kernel, bias = w["conv.weight"], w["conv.bias"]
    mixed = F.conv1d(F.pad(inner, (kernel.shape[2] - 1, 0))[None], kernel, bias, groups=6)[0].T
    return (through("conv_after") * mixed) @ w["conv_output.weight"].T + w["conv_output.bias"]


def run(layer: ShortConv, x: Tensor, pages: Tensor, start: int, table: list[int]) -> Tensor:
    batch = AttentionBatch.build([len(x)], [start], [table], pages.shape[1], CPU)
    step = ForwardContext(batch.slot_mapping, {}, {layer.call: planned(layer, batch)})
    with torch.inference_mode():
        out: Tensor = layer(x, step, pages, None)
    return out


@pytest.mark.row("F04.21", "F07.12", "F23.10")
@pytest.mark.parametrize("chunk", [1, 2, 3, 11])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_text_in_chunks_is_convolved_as_a_whole(
    context: BuildContext, chunk: int, page_size: int
) -> None:
    layer, weights = made(context)
    x, pages = torch.randn(11, 8), torch.full((12, page_size, 1, 1, 6), float("nan"))
    table = [5, 0, 3, 7, 1, 2, 8, 4, 6, 10, 9]
    rows = [run(layer, x[at : at + chunk], pages, at, table) for at in range(0, 11, chunk)]
    torch.testing.assert_close(torch.cat(rows), whole(x, weights), atol=1e-5, rtol=1e-5)


@pytest.mark.row("F04.21", "F07.12", "F23.10")
def test_bits_depend_on_no_cut_and_no_neighbour(context: BuildContext) -> None:
    """In bfloat16, in which every other order of sums would show."""
    layer, _ = made(replace(context, dtype=torch.bfloat16), spec.ShortConv(6, 3))
    x = torch.randn(20, 8, dtype=torch.bfloat16)

    def kept() -> Tensor:
        return torch.zeros(10, 4, 1, 1, 6, dtype=torch.bfloat16)

    inputs = torch.randn(20, 6, dtype=torch.bfloat16)
    results = list[Tensor]()
    for cut in (0, 1, 7, 16):
        pages, parts = kept(), list[Tensor]()
        for first, last in ((0, cut), (cut, 20)):
            if first == last:
                continue
            table = [[4, 2, 0, 6, 8], [1, 3, 5, 7, 9]]
            counts, starts = [last - first, 1], [first, 0]
            batch = AttentionBatch.build(counts, starts, table, 4, CPU)
            new = torch.cat((inputs[first:last], x[:1, :6]))
            plan = Reach(3).plan(batch, Reach(3))
            parts.append(layer.taps(new, batch.slot_mapping, plan, pages)[:-1])
        results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_page_may_be_a_part_of_something_larger(context: BuildContext) -> None:
    """As where layers of other shapes share the memory."""
    layer, weights = made(context)
    memory = torch.zeros(3, 50)
    pages = memory[:, 10:34].unflatten(1, (4, 1, 1, 6))
    x = torch.randn(9, 8)
    rows = [run(layer, x[:5], pages, 0, [2, 0]), run(layer, x[5:], pages, 5, [2, 0, 1])]
    torch.testing.assert_close(torch.cat(rows), whole(x, weights), atol=1e-5, rtol=1e-5)
    assert not memory[:, :10].any() and not memory[:, 34:].any()
