"""Arrivals: refused, restarted, queued, estimated."""

from __future__ import annotations

import pytest

from baton.protocol import Failed, Sampling, Submit, Tokens
from baton.protocol.token_columns import pack
from baton_scheduler.events import (
    Arrived,
    Reply,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler_world import World, failure


def test_the_queue_is_bounded_by_number_and_by_tokens() -> None:
    limits = SchedulerOptions(max_num_queued_reqs=2, max_num_queued_tokens=10, max_tenant_share=1.0)
    world = World(limits)
    assert world.submit([1] * 4, Sampling(1)).end is None
    assert failure(world.submit([1] * 7, Sampling(1))).code == "server_is_overloaded"
    assert world.submit([1] * 6, Sampling(1)).end is None
    refused = failure(world.submit([1], Sampling(1)))
    assert (refused.status, refused.code) == (503, "server_is_overloaded")
    assert 1 <= refused.retry_after <= 120


def test_retry_after_follows_the_measured_rate() -> None:
    world = World(SchedulerOptions(max_num_queued_reqs=1))
    world.join("w", worker_info(max_num_seqs=1))
    world.submit([1], Sampling(500))
    for _ in range(300):
        world.round()
    world.submit([1] * 900, Sampling(1))
    rate = world.state.computed.rate("")
    assert rate > 50
    seconds = failure(world.submit([1], Sampling(1))).retry_after
    assert seconds == -(-900 // rate)


def test_a_live_handle_that_is_submitted_again_goes_on_from_the_given_log() -> None:
    world = World()
    world.join("w")
    request = world.submit([4], Sampling(9, seed=2))
    for _ in range(5):
        world.round()
    assert len(request.tokens) > 2
    del request.tokens[2:]
    request.note, request.born = None, world.now
    again = Submit(1, "r", pack([4]), request.sampling, log=pack(request.tokens))
    world.apply(Arrived("g", again))
    world.finish()
    assert (request.tokens, request.end) == expected_tokens([4], request.sampling)


@pytest.mark.parametrize(
    ("submit", "code"),
    [
        (Submit(5, "r", b"", Sampling(1)), "empty_prompt"),
        (Submit(5, "r", b"123", Sampling(1)), "bad_frame"),
    ],
)
def test_a_broken_submit_is_refused_alone(submit: Submit, code: str) -> None:
    (decision,) = State(SchedulerOptions()).apply(Arrived("g", submit))
    assert isinstance(decision, Reply) and isinstance(decision.message, Failed)
    assert decision.message.code == code


def test_a_full_log_needs_no_worker() -> None:
    submit = Submit(5, "r", pack([1]), Sampling(2), log=pack([3, 4]))
    (decision,) = State(SchedulerOptions()).apply(Arrived("g", submit))
    assert isinstance(decision, Reply) and isinstance(decision.message, Tokens)
    assert decision.message.finished == {5: "length"}


@pytest.mark.parametrize("limit", [{"max_num_queued_reqs": 4}, {"max_num_queued_tokens": 12}])
def test_one_tenant_beyond_its_share_is_told_so_and_others_are_not(limit: dict[str, int]) -> None:
    world = World(SchedulerOptions(max_tenant_share=0.5, **limit))  # type: ignore[arg-type]
    for _ in range(2):
        assert world.submit([1] * 3, Sampling(1), tenant="a").end is None
    refused = failure(world.submit([1] * 3, Sampling(1), tenant="a"))
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.retry_after >= 1
    for tenant in "bc":
        assert world.submit([1] * 3, Sampling(1), tenant=tenant).end is None
    assert failure(world.submit([1] * 3, Sampling(1), tenant="d")).status == 503
    world.join("w")
    world.finish()
    assert world.state.queue.of("").share("a") == (0, 0)


def test_who_needs_no_key_may_fill_the_queue() -> None:
    world = World(SchedulerOptions(max_num_queued_reqs=4, max_tenant_share=0.5))
    for _ in range(4):
        assert world.submit([1] * 3, Sampling(1)).end is None
    assert failure(world.submit([1] * 3, Sampling(1))).status == 503
    assert failure(world.submit([1] * 3, Sampling(1), tenant="a")).status == 503


def test_a_note_tells_place_and_estimate() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=2, max_num_batched_tokens=100))
    world.peers["w"].engine.duration_us = 20_000
    first = [world.submit([n] * 40, Sampling(30, seed=n)) for n in range(5)]
    world.finish()
    assert [r.note.position for r in first if r.note] == [0, 1, 2, 3, 4]
    assert {r.note.ttft_ms for r in first if r.note} == {-1}, "nothing was measured yet"
    alone = world.submit([9] * 40, Sampling(5, seed=9))
    world.finish()
    assert alone.note is not None and alone.note.position == 0
    assert 10 <= alone.note.ttft_ms <= 60


def test_an_estimate_grows_with_what_waits() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=2))
    world.peers["w"].engine.duration_us = 10_000
    for _ in range(3):
        world.submit([1] * 20, Sampling(100))
        for _ in range(70):
            world.round()
    line = [world.submit([n] * 20, Sampling(9, seed=n)) for n in range(30)]
    world.finish()
    estimates = [request.note.ttft_ms for request in line if request.note]
    assert estimates == sorted(estimates) and estimates[-1] > 4 * estimates[0]


def test_who_is_over_its_share_is_told_of_the_turns_of_others_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SchedulerOptions(max_num_queued_reqs=4))
    assert world.state.options.scheduling_policy == "fair"
    monkeypatch.setattr(world.state.computed, "rate", lambda model: 10.0)
    for tenant, length in (("a", 3), ("a", 3), ("b", 300)):
        assert world.submit([1] * length, Sampling(1), tenant=tenant).end is None
    refused = failure(world.submit([1] * 3, Sampling(1), tenant="a"))
    assert (refused.status, refused.retry_after) == (429, 31)  # 306 tokens at 10 per second
