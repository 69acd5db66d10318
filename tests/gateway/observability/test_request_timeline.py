"""Timelines: causes add up, and scheduler phases are split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.protocol import PhaseTimes
from baton_gateway.observability.latency_explanation import LatencyExplanation
from baton_gateway.observability.request_timeline import RequestTimeline

HEX = "0f" * 16


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def account(clock: Clock) -> RequestTimeline:
    return RequestTimeline(f"req_{HEX}", "/v1/completions", clock)


def causes(told: LatencyExplanation) -> dict[str, float]:
    assert sum(part.ms for part in told.causes) + told.unattributed_ms == pytest.approx(
        told.wall_ms, abs=0.01
    )
    assert all(part.ms >= 0 for part in told.causes)
    return {part.cause: part.ms for part in told.causes if part.ms}


def test_a_request_from_its_first_byte_to_its_last(clock: Clock) -> None:
    one = account(clock)
    clock.sleep(0.001)
    one.enter("admission")
    clock.sleep(0.002)
    one.enter("encode")
    clock.sleep(0.003)
    one.submitted({7: 0})
    clock.sleep(1.0)
    one.estimated(7, PhaseTimes(0.2, 0.3, 0.4, batch_neighbours=2.5))
    one.sampled(7)
    clock.sleep(0.004)
    one.delivered(7)
    clock.sleep(0.005)
    started_at = clock.now
    clock.sleep(0.006)
    one.sent(started_at)
    one.close("200")
    clock.sleep(9.0)
    told = one.explain()
    assert causes(told) == {
        "receive": 1.0,
        "admission": 2.0,
        "encode": 3.0,
        "transport": 100.0,
        "queue": 200.0,
        "prefill": 300.0,
        "decode": 400.0,
        "detokenise": 4.0,
        "respond": 5.0,
        "client": 6.0,
    }
    assert (told.wall_ms, told.state, told.status, told.choice) == (1021.0, "ended", "200", 0)
    assert [part.service for part in told.causes[:4]] == [
        "gateway",
        "gateway",
        "tokenizer",
        "network",
    ]
    assert told.summary == (
        "decode 39 %, prefill 29 %, queue 20 %, its steps were shared with 2.5 others"
    )


def test_the_choice_that_ended_last_is_the_one_that_counts(clock: Clock) -> None:
    one = account(clock)
    one.submitted({7: 0, 8: 1})
    clock.sleep(1.0)
    one.estimated(8, PhaseTimes(decode=1.0))
    one.delivered(8)
    clock.sleep(1.0)
    one.estimated(7, PhaseTimes(queued=1.5, decode=0.5, preemptions=1))
    one.delivered(7)
    one.close("200")
    told = one.explain()
    assert causes(told) == {"queue": 1500.0, "decode": 500.0}
    assert told.choice == 0
    assert [(run.choice, run.decode_ms) for run in told.choices] == [(0, 500.0), (1, 1000.0)]
    assert told.choices[0].preemptions == 1


def test_what_the_scheduler_did_after_the_answer_was_complete_is_no_part_of_it(
    clock: Clock,
) -> None:
    """A stop string: the scheduler hears of the end later than the client."""
    one = account(clock)
    one.submitted({7: 0})
    clock.sleep(1.0)
    one.delivered(7)
    one.close("200")
    assert (causes(one.explain()), one.explain().unattributed_ms) == ({}, 1000.0)
    one.estimated(7, PhaseTimes(prefill=0.5, decode=0.6))
    assert causes(one.explain())["decode"] == pytest.approx(500.0)


def test_a_slow_client_counts_once_nothing_else_is_left(clock: Clock) -> None:
    one = account(clock)
    one.submitted({7: 0})
    started_at = clock.now
    clock.sleep(3.0)
    one.sent(started_at)  # The model went on meanwhile.
    started_at = clock.now
    clock.sleep(1.0)
    one.estimated(7, PhaseTimes(decode=4.0))
    one.delivered(7)
    clock.sleep(2.0)
    one.sent(started_at)
    one.close("200")
    found = causes(one.explain())
    assert (found["client"], found["decode"]) == (2000.0, 4000.0)


def test_a_scheduler_that_is_lost_leaves_what_nobody_can_tell(clock: Clock) -> None:
    one = account(clock)
    one.submitted({7: 0})
    clock.sleep(1.0)
    one.scheduler_lost()
    clock.sleep(2.0)
    one.resumed()
    clock.sleep(3.0)
    one.estimated(7, PhaseTimes(decode=3.0))
    one.delivered(7)
    one.close("200")
    told = one.explain()
    assert (causes(told)["no_scheduler"], causes(told)["decode"]) == (2000.0, 3000.0)
    assert told.unattributed_ms == 1000.0


def test_what_runs_is_told_as_far_as_it_has_come(clock: Clock) -> None:
    one = account(clock)
    clock.sleep(1.0)
    one.submitted({7: 0})
    clock.sleep(2.0)
    told = one.explain()
    assert causes(told) == {"receive": 1000.0, "engine": 2000.0}
    assert (told.state, told.status, told.choice) == ("running", "", None)
    one.submitted({7: 0, 8: 1})
    one.estimated(8, PhaseTimes(decode=1.0))
    one.delivered(8)
    assert causes(one.explain()) == {"receive": 1000.0, "engine": 2000.0}


def test_nothing_changes_after_the_end(clock: Clock) -> None:
    one = account(clock)
    clock.sleep(1.0)
    one.failed("no_worker")
    one.close("503")
    before = one.explain()
    clock.sleep(1.0)
    one.enter("encode")
    one.failed("other")
    one.close("200")
    assert one.explain() == before
    assert (before.status, before.error) == ("503", "no_worker")


STEPS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.sampled_from(["encode", "admission", "held", "resumed", "deliver", "told", "sent"]),
        st.integers(1, 3),
    ),
    max_size=20,
)


@given(STEPS)
def test_every_moment_is_in_one_cause(steps: list[tuple[float, str, int]]) -> None:
    clock = Clock()
    one = account(clock)
    one.submitted({handle: handle - 1 for handle in (1, 2, 3)})
    for seconds, what, handle in steps:
        started_at = clock.now
        clock.sleep(seconds)
        match what:
            case "held":
                one.scheduler_lost()
            case "resumed":
                one.resumed()
            case "deliver":
                one.delivered(handle)
            case "told":
                one.estimated(handle, PhaseTimes(seconds, 1.0, seconds, handover=0.5))
            case "sent":
                one.sent(started_at)
            case _:
                one.enter(what)  # type: ignore[arg-type]
        causes(one.explain())
    one.close("200")
    causes(one.explain())
