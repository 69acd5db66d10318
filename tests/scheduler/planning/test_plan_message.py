"""What a plan says to its worker."""

from __future__ import annotations

from baton.protocol import Sampling
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.one_worker import rows, world


def test_a_worker_with_nothing_to_run_is_still_told_to_release() -> None:
    here = world(worker_info())
    here.submit([1], Sampling(1))
    here.finish()
    here.round()
    assert here.peers["w"].engine.slots == {}
    planned = len(here.plans)
    here.round()
    assert len(here.plans) == planned


def test_scoring_a_prompt_samples_nothing() -> None:
    here = world(worker_info(max_num_batched_tokens=4))
    request = here.submit(list(range(10)), Sampling(0, prompt_logprobs=1))
    here.finish()
    assert (request.tokens, request.end) == ([], "length")
    assert [rows(p)[0] for p in here.plans if rows(p)] == [(0, 4, 0), (4, 4, 0), (8, 1, 0)]
