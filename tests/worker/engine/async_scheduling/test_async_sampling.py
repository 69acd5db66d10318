"""What a launched step sends to the host."""

from __future__ import annotations

from typing import Any

import torch

from baton_worker.engine.async_scheduling.async_forward import AsyncForward
from baton_worker.engine.async_scheduling.async_sampling import BROKEN, AsyncSampling
from baton_worker.sampling import Sampler
from tests.fakes.host_link import HostLink
from tests.support.worker.plans import batch, entering, plan


class _Counting:
    """Hidden states are tokens, and logits favour the token behind; NaN for token 9."""

    def forward(self, tokens: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        hidden = tokens[:, None].float()
        return torch.where(hidden == 9, torch.nan, hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(50.0)
        return -(ids - hidden - 1).abs() + 0 * hidden


def test_tokens_of_rows_that_sample_and_flags_of_those_that_do_not() -> None:
    none: Any = None
    model: Any = _Counting()
    forward = AsyncForward(model, none, torch.device("cpu"), HostLink(), 4)
    held = batch()
    sampling = AsyncSampling(forward, held.sampling, Sampler())
    new = tuple(entering(slot, [3 + slot, 9, 6], temperature=0.0) for slot in range(4))
    pages = {slot: [slot] for slot in range(4)}
    run = [(0, 0, 3, 1), (1, 0, 2, 0), (2, 0, 1, 0), (3, 0, 3, 1)]
    inputs = held.prepare(plan(new_sequences=new, pages=pages, run=run))
    assert sampling.launch(inputs).wait().tolist() == [7, 7, 0, 1]
    broken = batch()
    sampling = AsyncSampling(forward, broken.sampling, Sampler())
    enter = (entering(0, [9], temperature=0.0), entering(1, [4], temperature=0.0))
    step = plan(new_sequences=enter, pages={0: [0], 1: [1]}, run=[(0, 0, 1, 1), (1, 0, 1, 1)])
    inputs = broken.prepare(step)
    assert sampling.launch(inputs).wait().tolist() == [BROKEN, 5]
    broken.expect(inputs.rows)
    # The next step begins with a token of the vocabulary in the place of what is none.
    inputs = broken.prepare(plan(1, run=[(0, 1, 1, 1), (1, 1, 1, 1)]))
    assert sampling.launch(inputs).wait().tolist() == [1, 6]
