"""Both ways to walk the pages of a selective scan find the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.decay import StateDecay
from baton_worker.layers.ssm.scan_plan import Scans
from baton_worker.layers.ssm.selective_scan import (
    Compiled,
    Stepwise,
    _sum,
    scan,
)
from tests.fakes.random_weights import fill

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F04.19", "F07.03")]
CPU = torch.device("cpu")
SETTINGS = spec.Mamba(channels=75, state_size=7, step_rank=3, taps=4)
PAGE, ROWS = 24, 4


def dynamics(context: BuildContext) -> StateDecay:
    made = StateDecay(SETTINGS, context)
    fill(made)
    made.process_weights_after_loading()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_both_find_the_same(context: BuildContext, dtype: torch.dtype) -> None:
    """Rows that begin, go on, and end anywhere; the last channels fill no vector."""
    if reason := CpuScan.refuses(dtype, CPU):
        pytest.skip(reason)
    tables = [[row * 4 + page for page in range(4)] for row in range(ROWS)]
    batch = AttentionBatch.build([60, 1, 30, 49], [0, 47, 24, 30], tables, PAGE, CPU)
    walks = Scans(4).plan(batch, Scans(4))
    read, made = torch.randn(140, 7), dynamics(context)
    tokens, states = torch.randn(16, PAGE, *SETTINGS.row).to(dtype), torch.randn(16, 7, 75)
    results = list[tuple[Tensor, Tensor]]()
    for form in (Compiled(made, CpuScan(75)), Stepwise(made)):
        pages = Snapshots(tokens, states.clone())
        results.append((form(pages, read, walks), pages.states))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("size", range(1, 18))
def test_a_sum_by_halves_has_every_number_once(size: int) -> None:
    x = torch.randint(100, (3, size, 5)).float()
    assert torch.equal(_sum(x), x.sum(1))


def test_the_twin_serves_where_the_kernel_does_not(context: BuildContext) -> None:
    half = replace(context, dtype=torch.float16)
    assert isinstance(scan(75, dynamics(context), half), Stepwise)
