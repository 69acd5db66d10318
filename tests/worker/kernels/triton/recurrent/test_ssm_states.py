"""Scans of state-space layers page by page, against their twin in torch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.ssm_states import Chains, Shape
from baton_worker.layers.ssm.page_segments import Cut
from tests.fakes.state_steps import CASES, StateStep


@pytest.mark.row("F07.05")
@pytest.mark.parametrize(("shape", "page_size", "dtype"), CASES.values(), ids=CASES.keys())
def test_states_and_outputs_are_those_of_the_twin(
    shape: Shape, page_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    """No row is long, if a token has the same bits in each."""
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    step = StateStep(shape, page_size, dtype, device)
    kept, theirs = step.pages(), step.pages()
    made = (step.walked(TritonStates(shape, exact=True), kept), kept.states)
    for found, wanted in zip(made, (step.plain(theirs), theirs.states), strict=True):
        least = 1e-5 * float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=least)
    chains, given = step.segments.chains, step.pages().states
    first = chains.pages[chains.starts]
    assert kept.states[first].equal(given[first])


def test_with_exact_a_decoded_token_has_the_bits_of_a_prompt(device: torch.device) -> None:
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    shape, size = Shape(2, 1, 20, 9, 0, 20), 24
    step = StateStep(shape, size, torch.bfloat16, device)
    kernel, made = TritonStates(shape, exact=True), list[Tensor]()
    for cuts in ([0, 73], [0, 24, 25, 47, 72, 73]):
        kept, parts = step.pages(), list[Tensor]()
        for begin, end in pairwise(cuts):
            batch = AttentionBatch.build([end - begin], [begin], [[3, 1, 0, 2]], size, device)
            chains = Cut().plan(batch, Cut()).chains
            fading = step.fading(chains.pages)
            parts.append(kernel.walk(kept, step.query[begin:end], chains, fading))
        made.append(torch.cat(parts))
    assert made[0].equal(made[1])


def test_entries_of_no_row_are_passed_over(device: torch.device) -> None:
    """As a plan of the device has them, see `chains`."""
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    step = StateStep(Shape(2, 1, 20, 9, 0, 20), 16, torch.float32, device)
    kernel, kept, given = TritonStates(step.shape), step.pages(), step.segments.chains
    wanted, states = step.walked(kernel, kept), kept.states
    at = int(given.starts[2])
    more = [given.starts.clone(), given.stops.clone()]
    for column in more:
        column[2:] += 1
    more[1][1] = at
    parts = (given.pages, given.firsts, given.begins)
    values = (0, -1, int(given.begins[at]))
    for column, value in zip(parts, values, strict=True):
        more.append(torch.cat((column[:at], column.new_tensor([value]), column[at:])))
    chains, kept = Chains(*more), step.pages()
    found = kernel.walk(kept, step.query, chains, step.fading(chains.pages))
    assert found.equal(wanted) and kept.states.equal(states)
