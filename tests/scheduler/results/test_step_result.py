"""Results: good, late, partial, damaged."""

from __future__ import annotations

import msgspec
import pytest

from baton.protocol import Grammar, Result, Sampling
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.events import Decision, Settled
from tests.fakes.hash_worker import expected_tokens, token, worker_info
from tests.support.scheduler.results import logprobs, messages, next_result, running, settle
from tests.support.scheduler_world import World


def test_rows_of_an_aborted_sequence_are_dropped() -> None:
    here = running("g", "g")
    here.abort("g", 1)
    sent = messages(settle(here, next_result(here)))
    assert unpack(sent["g"].handles, "I").tolist() == [2]


def test_a_stop_id_on_the_last_allowed_token_is_a_stop() -> None:
    here = World()
    here.join("w", worker_info())
    stop = token(pack([5]), 0, 1)
    request = here.submit([5], Sampling(2, stop_ids=(stop,)))
    here.finish()
    assert (len(request.tokens), request.end) == (2, "stop")


def test_a_sequence_that_fails_alone_costs_nobody_else() -> None:
    here = World()
    here.join("w", worker_info(), fail_on=13)
    bad, good = here.submit([13, 1], Sampling(4)), here.submit([1, 2], Sampling(4))
    here.finish()
    assert bad.failed is not None
    assert (bad.failed.status, bad.failed.code) == (500, "internal_error")
    assert "not finite" in bad.failed.message
    assert (good.tokens, good.end) == expected_tokens(good.prompt, good.sampling)


def without(result: Result, row: int) -> Result:
    """The result with one row left out."""
    size = 4 * row
    return msgspec.structs.replace(
        result,
        rows=result.rows[:size] + result.rows[size + 4 :],
        first=result.first[:size] + result.first[size + 4 :],
        tokens=result.tokens[:size] + result.tokens[size + 4 :],
        counts=result.counts[1:],
    )


def test_a_token_that_does_not_come_is_computed_again() -> None:
    here = running("g", "g")
    settle(here, without(next_result(here), 0))
    assert [s.handle for s in here.state.queue] == [1]
    here.finish()
    for request in here.requests.values():
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


@pytest.mark.parametrize("index", [1, 5])
def test_a_token_with_the_wrong_index_is_never_passed_on(index: int) -> None:
    here = running("g")
    result = msgspec.structs.replace(next_result(here), first=pack([index], "I"))
    assert messages(settle(here, result)) == {}
    assert here.requests["g", 1].tokens == [] and len(here.state.queue) == 1


def test_a_row_that_keeps_failing_to_come_ends_in_quarantine() -> None:
    here = World()
    here.join("w", worker_info())
    request = here.submit([1], Sampling(4))
    for _ in range(30):
        here.tick()
        if here.run():
            settle(here, without(next_result(here), 0))
    assert request.failed is not None and request.failed.code == "request_quarantined"


def leaping() -> World:
    """Two sequences, the first under a grammar, each with its first result on the way."""
    here = World()
    here.join("w", worker_info())
    here.submit([1], Sampling(8, grammar=Grammar("regex", "a*")))
    here.submit([2], Sampling(8))
    here.tick()
    here.run()
    return here


def told(here: World, result: Result) -> list[Decision]:
    """Settle a result whose tokens are none that this world expects."""
    return here.state.apply(Settled("w", result))


def with_counts(result: Result, counts: list[int], tokens: list[int]) -> Result:
    return msgspec.structs.replace(result, counts=bytes(counts), tokens=pack(tokens))


def log(here: World, handle: int) -> list[int]:
    return list(here.state.live["g", handle].log)


def test_a_row_brings_what_was_forced_and_its_log_probabilities() -> None:
    here = leaping()
    result = with_counts(next_result(here), [3, 1], [5, 6, 7, 9])
    sent = messages(told(here, msgspec.structs.replace(result, logprobs=logprobs(4))))["g"]
    assert unpack(sent.handles, "I").tolist() == [1, 2]
    assert (list(sent.counts), unpack(sent.tokens).tolist()) == ([3, 1], [5, 6, 7, 9])
    assert sent.logprobs is not None and unpack(sent.logprobs.rows, "I").tolist() == [0, 1, 2, 3]
    assert (log(here, 1), log(here, 2)) == ([5, 6, 7], [9])
    batch = here.state.fleet.get("w").batch  # type: ignore[union-attr]
    assert batch.num_confirmed[:2].tolist() == [3, 1]
    here.state.check()


def test_the_next_step_begins_behind_what_was_forced() -> None:
    here = leaping()
    told(here, with_counts(next_result(here), [4, 1], [5, 6, 7, 8, 9]))
    worker = here.state.fleet.get("w")
    assert worker is not None
    in_flight = sum(bool(flight.owners[0]) for flight in worker.flights)
    assert worker.batch.num_scheduled[:2].tolist() == [1 + 4 - 1 + in_flight, 1 + in_flight]


def test_no_more_tokens_than_were_asked_for() -> None:
    here = leaping()
    result = with_counts(next_result(here), [10, 1], [*range(20, 30), 9])
    sent = messages(told(here, msgspec.structs.replace(result, logprobs=logprobs(11))))["g"]
    assert sent.finished == {1: "length"} and list(sent.counts) == [8, 1]
    assert unpack(sent.tokens).tolist() == [*range(20, 28), 9]
    assert sent.logprobs is not None and unpack(sent.logprobs.top_ids).tolist() == [*range(8), 10]


def test_a_row_that_waits_for_a_page_is_not_missing() -> None:
    here = leaping()
    told(here, with_counts(next_result(here), [1, 1], [5, 9]))
    here.tick()
    here.run()
    waiting = next_result(here)
    sent = messages(told(here, with_counts(waiting, [0, 1], [9])))["g"]
    assert unpack(sent.handles, "I").tolist() == [2]
    assert (log(here, 1), len(log(here, 2))) == ([5], 2)
    worker = here.state.fleet.get("w")
    assert worker is not None and worker.flights.wasteful and len(here.state.queue) == 0
    here.state.check()


def test_several_tokens_of_a_free_row_are_a_bad_result() -> None:
    here = leaping()
    told(here, with_counts(next_result(here), [1, 2], [5, 8, 9]))
    assert here.state.counters.stale_results == 1
    assert {s.handle for s in here.state.queue} == {1, 2}
