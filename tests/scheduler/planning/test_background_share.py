"""Sequences of the background have a part of a step that others do not feel."""

from __future__ import annotations

from baton.protocol import BACKGROUND, Sampling
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.one_worker import rows, world

PER_STEP, PER_TOKEN = 0.01, 0.001


def test_beside_others_it_has_what_makes_a_step_a_twentieth_longer() -> None:
    """A step of one token takes 11 ms; half a token more would be felt."""
    here = world(worker_info())
    behind = [here.submit([n, n], Sampling(40), priority=BACKGROUND) for n in range(3)]
    here.round()
    worker = next(iter(here.state.fleet))
    for tokens in (1, 40) * 50:
        worker.step_cost.add(tokens, PER_STEP + PER_TOKEN * tokens)
    here.round()
    assert len(rows(here.plans[-1])) == 3  # They are alone.
    online = here.submit([7, 8, 9], Sampling(10))
    here.round()
    here.round()
    for _ in range(4):
        here.round()
        assert len(rows(here.plans[-1])) == 1
    for tokens in (1, 40) * 200:
        worker.step_cost.add(tokens, 100 * PER_STEP + PER_TOKEN * tokens)
    here.round()
    assert len(rows(here.plans[-1])) == 4
    here.finish()
    for request in (online, *behind):
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


def test_its_prompts_wait_for_a_step_without_others() -> None:
    here = world(worker_info())
    online = here.submit([1, 2], Sampling(8))
    here.round()
    for tokens in (1, 40) * 50:
        next(iter(here.state.fleet)).step_cost.add(tokens, PER_STEP + PER_TOKEN * tokens)
    behind = here.submit([3] * 10, Sampling(5), priority=BACKGROUND)
    here.finish()
    assert all(len(rows(plan)) < 2 for plan in here.plans)
    assert online.end and len(online.tokens) == 8
    assert (behind.tokens, behind.end) == expected_tokens(behind.prompt, behind.sampling)
