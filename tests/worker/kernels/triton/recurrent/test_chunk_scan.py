"""Scans of state-space layers in chunks, against their twin in torch."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.recurrent.ssm_states import Chains, Shape
from tests.fakes.state_steps import CASES, COUNTS, StateStep


@pytest.mark.row("F07.05")
@pytest.mark.parametrize(("shape", "page_size", "dtype"), CASES.values(), ids=CASES.keys())
def test_states_and_outputs_are_those_of_the_twin(
    shape: Shape, page_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Also of rows that are walked beside those in chunks."""
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    step = StateStep(shape, page_size, dtype, device)
    ours, theirs = step.pages(), step.pages()
    made = (step.walked(TritonStates(shape), ours), ours.states)
    expected = (step.plain(theirs), theirs.states)
    # In products of bfloat16, states and weighted keys have 8 bits.
    near = 2e-2 if dtype is torch.bfloat16 else 1e-5
    for found, wanted in zip(made, expected, strict=True):
        least = near * float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=near, atol=least)


def test_bits_depend_on_no_other_row_and_on_nothing_behind_the_end(device: torch.device) -> None:
    from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

    shape = Shape(2, 1, 20, 9, 0, 20)
    step = StateStep(shape, 16, torch.bfloat16, device)
    kernel, kept, first = TritonStates(shape), step.pages(), COUNTS[0]
    together = step.walked(kernel, kept)[:first]
    starts, stops, pages, firsts, begins = step.segments.chains
    count = int(stops[0])
    kept.tokens[pages[count - 1], first % 16 :] = torch.nan
    alone = Chains(starts[:1], stops[:1], pages[:count], firsts[:count], begins[: count + 1])
    assert kernel.walk(kept, step.query[:first], alone, step.fading(alone.pages)).equal(together)
