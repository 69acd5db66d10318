"""Both ways to walk the pages of a delta net find the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.delta import CpuDelta
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.delta_inputs import Decays
from baton_worker.layers.ssm.delta_scan import Blockwise, OnCpu, walk
from baton_worker.layers.ssm.page_segments import Cut
from tests.fakes.random_weights import fill

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F04.18", "F07.13")]
CPU = torch.device("cpu")
NORM = spec.GatedNorm(1e-6, 40, gate_first=False, shared=True)
GATED = spec.DeltaNet(2, 6, 24, 40, 4, NORM, strength=2.0)
KIMI = spec.DeltaNet(3, 3, 21, 19, 3, NORM, rank=5)
PAGE, ROWS = 24, 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", [GATED, KIMI], ids=["gated", "kimi"])
def test_both_find_the_same(
    context: BuildContext, settings: spec.DeltaNet, dtype: torch.dtype
) -> None:
    """In pages of one block and a half; rows that begin, go on, and end anywhere."""
    if reason := CpuDelta.refuses(dtype, CPU):
        pytest.skip(reason)
    decays = Decays(settings, replace(context, dtype=dtype))
    fill(decays)
    tables = [[row * 4 + page for page in range(4)] for row in range(ROWS)]
    batch = AttentionBatch.build([60, 1, 30, 49], [0, 47, 24, 30], tables, PAGE, CPU)
    segments = Cut(settings.taps).plan(batch, Cut(settings.taps))
    query = torch.randn(140, settings.key_width).to(dtype)
    tokens, states = (
        torch.randn(16, PAGE, *settings.row).to(dtype),
        torch.randn(16, *settings.state),
    )
    results = list[tuple[Tensor, Tensor]]()
    scan = walk(settings, decays, replace(context, dtype=dtype))
    assert isinstance(scan, OnCpu)
    for form in (scan, Blockwise(settings, decays)):
        pages = Snapshots(tokens, states.clone())
        results.append((form(pages, query, segments), pages.states))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_the_twin_serves_where_the_kernel_does_not(context: BuildContext) -> None:
    half = replace(context, dtype=torch.float16)
    assert isinstance(walk(GATED, Decays(GATED, half), half), Blockwise)
