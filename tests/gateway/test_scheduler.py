"""The scheduler as the gateway sees it: tokens, failures, silence, restarts."""

from __future__ import annotations

import asyncio

import pytest

from baton.errors import RateLimited, ServerFault, Unavailable
from baton.protocol import Failed, Tokens
from baton.tokens import pack
from tests.fakes.engine import FakeEngine
from tests.fakes.running import REPLY, generation, run, text_of


def test_scheduler_restart_ends_what_runs() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply, engine.scheduler.pace = REPLY * 20, 0.01
        texts = asyncio.create_task(text_of(engine, generation(n=2)))
        await asyncio.sleep(0.1)
        engine.scheduler.restart()
        with pytest.raises(Unavailable) as caught:
            await texts
        assert (caught.value.status, caught.value.code) == (503, "scheduler_restarted")
        assert caught.value.retry_after
        engine.scheduler.reply = REPLY
        assert await text_of(engine, generation()) == {0: REPLY}

    run(check)


def test_scheduler_that_gave_us_up_is_greeted_again() -> None:
    """It answers Who under the incarnation that we know: our sequences are gone there."""

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        texts = asyncio.create_task(text_of(engine, generation()))
        await asyncio.sleep(0.05)
        engine.scheduler.known = False
        engine.scheduler.live.clear()
        with pytest.raises(Unavailable):
            await texts
        engine.scheduler.hold = False
        assert await text_of(engine, generation()) == {0: REPLY}

    run(check)


def test_silent_scheduler_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.peers.LOST_SECONDS", 0.2)

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        texts = asyncio.create_task(text_of(engine, generation()))
        await asyncio.sleep(0.05)
        engine.scheduler.silent = True
        with pytest.raises(Unavailable, match="Send it again"):
            await texts
        with pytest.raises(Unavailable) as caught:
            await text_of(engine, generation())
        assert caught.value.retry_after
        engine.scheduler.silent = engine.scheduler.hold = False
        await asyncio.sleep(0.3)
        assert await text_of(engine, generation()) == {0: REPLY}

    run(check)


def test_failure_of_one_choice_fails_the_request() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.fail = Failed(0, "queue_full", "Too much to do.", 503, 3)
        engine.scheduler.fail_after = 2
        with pytest.raises(Unavailable) as caught:
            await text_of(engine, generation(n=2))
        assert (caught.value.code, caught.value.retry_after) == ("queue_full", 3)
        engine.scheduler.fail = Failed(0, "bad_logits", "The model gave no numbers.")
        with pytest.raises(ServerFault, match="no numbers"):
            await text_of(engine, generation())

    run(check)


def test_gap_in_the_log_is_refused_and_repeats_are_dropped() -> None:
    def tokens(handle: int, first: int, *ids: int, last: bool = False) -> Tokens:
        finished = {handle: "length"} if last else {}
        columns = (pack([handle], "I"), pack([first], "I"), pack([len(ids)], "B"))
        return Tokens(*columns, pack(ids), finished)

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        for messages, good in (
            ([tokens(1, 0, 97, 98), tokens(1, 1, 98, 99), tokens(1, 3, 100, last=True)], True),
            ([tokens(2, 0, 97), tokens(2, 2, 99)], False),
        ):
            texts = asyncio.create_task(text_of(engine, generation()))
            await asyncio.sleep(0.05)
            for message in messages:
                engine.scheduler.push(message)
            if good:
                assert await texts == {0: "abcd"}
            else:
                with pytest.raises(ServerFault, match="lost on the way"):
                    await texts
                assert engine.scheduler.aborted == [2]

    run(check)


def test_message_that_makes_no_sense_stops_nobody() -> None:
    """Columns of unequal length are a bug of the sender; the link goes on."""

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.push(Tokens(pack([1, 2], "I"), pack([0], "I"), pack([1], "B"), pack([1])))
        assert await text_of(engine, generation()) == {0: REPLY}

    run(check)


def test_over_its_share_is_a_429_with_retry_after() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.fail = Failed(0, "rate_limit_exceeded", "Too many.", 429, 7)
        with pytest.raises(RateLimited) as caught:
            await text_of(engine, generation())
        assert (caught.value.status, caught.value.retry_after) == (429, 7)

    run(check)


def test_what_is_left_of_a_deadline_goes_with_the_work() -> None:
    async def check(engine: FakeEngine) -> None:
        await text_of(engine, generation(deadline_ms=5000))
        await text_of(engine, generation())
        given = [e for e in engine.scheduler.deadlines if e]
        assert len(given) == 1 and 3000 < given[0] <= 5000

    run(check)
