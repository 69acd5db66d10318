"""The scheduler client: tokens, failures, silence, restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton.errors import RateLimited, ServerFault, Unavailable
from baton.protocol import Envelope, Failed, Message, Submit, Tokens
from baton.protocol.token_columns import pack
from tests.fakes.engine_runner import (
    REPLY,
    admitted,
    generation,
    run,
    text_of,
)
from tests.fakes.gateway_engine import FakeChannel, FakeEngine


@pytest.mark.parametrize("stops", [(), ("never", "on.!")])
def test_a_restart_is_a_pause(stops: tuple[str, ...]) -> None:
    """The logs are here: the next scheduler continues after them, whoever forgets whatever."""

    async def check(engine: FakeEngine) -> None:
        reply = engine.scheduler.reply = "Grüße, 🫠 Baton. " * 8
        engine.scheduler.pace = 0.002
        texts = asyncio.create_task(text_of(engine, generation(n=3, stops=stops)))
        for _ in range(3):
            await asyncio.sleep(0.06)
            engine.scheduler.restart()
            engine.tokenizer.restart()
        assert await texts == dict.fromkeys(range(3), reply)
        submits = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert len(submits) > 3 and any(m.log for m in submits)
        first = {m.handle: m.sampling for m in submits[:3]}
        assert all(m.sampling == first[m.handle] for m in submits)
        assert await text_of(engine, generation()) == {0: reply}

    run(check)


def test_what_has_ended_is_not_run_again() -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply, engine.scheduler.hold = REPLY * 20, True
        texts = asyncio.create_task(text_of(engine, generation(n=2, stops=("from",))))
        await admitted(engine, 2)
        for _ in range(9):
            engine.scheduler.step()
        running = engine.scheduler.live.pop(2)  # Only the first one meets its stop string.
        for _ in range(9):
            engine.scheduler.step()
        await asyncio.sleep(0.05)
        engine.scheduler.restart()
        engine.scheduler.seen.clear()
        engine.scheduler.hold = False
        assert await texts == dict.fromkeys(range(2), "Hello ")
        again = [m for m in engine.scheduler.seen if isinstance(m, Submit)]
        assert [m.handle for m in again] == [running.submit.handle]

    run(check)


def test_scheduler_that_gave_us_up_is_given_the_work_again() -> None:
    """It answers Who under the incarnation that we know: our sequences are gone there."""

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        texts = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine)
        engine.scheduler.known = engine.scheduler.hold = False
        engine.scheduler.live.clear()
        assert await texts == {0: REPLY}

    run(check)


def test_a_scheduler_that_does_not_come_back_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.net.handshake.QUIET_SECONDS", 0.2)

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.hold = True
        texts = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine)
        engine.scheduler.silent = True
        with pytest.raises(Unavailable, match="Send it again") as caught:
            await texts
        assert (caught.value.status, caught.value.code) == (503, "scheduler_lost")
        assert caught.value.retry_after
        with pytest.raises(Unavailable) as caught:
            await text_of(engine, generation())
        assert caught.value.retry_after
        engine.scheduler.silent = engine.scheduler.hold = False
        await asyncio.sleep(0.3)
        engine.scheduler.seen.clear()
        assert await text_of(engine, generation()) == {0: REPLY}
        assert len([m for m in engine.scheduler.seen if isinstance(m, Submit)]) == 1

    run(check, failover_wait_seconds=0.3)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_scheduler_that_was_stopped_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """It never forgot us: its old runs are ahead of our logs, and one of them is not wanted."""
    monkeypatch.setattr("baton.net.handshake.QUIET_SECONDS", 0.2)

    async def check(engine: FakeEngine) -> None:
        scheduler = engine.scheduler
        scheduler.reply, scheduler.hold = REPLY * 2, True
        texts = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine)
        for _ in range(5):
            scheduler.step()
        scheduler.silent = True
        heard, scheduler.push = scheduler.push, lambda message: None
        for _ in range(len(scheduler.reply) - 6):
            scheduler.step()
        scheduler.push = heard
        await asyncio.sleep(0.4)
        assert engine.status.unhealthy_reasons()
        if leaves:
            texts.cancel()
            await asyncio.gather(texts, return_exceptions=True)
            assert scheduler.live and not scheduler.aborted
        greeted = scheduler.greeted
        monkeypatch.setattr(
            scheduler, "greeted", lambda: (greeted(), scheduler.step(), scheduler.step())
        )
        scheduler.silent = scheduler.hold = False
        if leaves:
            await asyncio.sleep(0.3)
            assert scheduler.aborted == [1] and not scheduler.live
        else:
            assert await texts == {0: REPLY * 2}

    run(check)


def test_work_that_comes_in_between_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is dead, and nobody has noticed yet."""
    monkeypatch.setattr(FakeChannel, "post", _refuses(FakeChannel.post))

    async def check(engine: FakeEngine) -> None:
        engine.scheduler.unreachable = True  # type: ignore[attr-defined]
        texts = asyncio.create_task(text_of(engine, generation(deadline_ms=9000)))
        await asyncio.sleep(0.05)
        assert not engine.scheduler.seen
        engine.scheduler.unreachable = False  # type: ignore[attr-defined]
        engine.scheduler.restart()
        assert await texts == {0: REPLY}
        assert [7000 < left < 9000 for left in engine.scheduler.deadlines] == [True]

    run(check)


def _refuses(post: Any) -> Any:
    async def posting(channel: Any, message: Message, envelope: Envelope | None = None) -> bool:
        server = channel._server
        if isinstance(message, Submit) and getattr(server, "unreachable", False):
            return False
        return bool(await post(channel, message, envelope))

    return posting


@pytest.mark.parametrize("code", ["shutting_down", "server_is_overloaded"])
def test_what_ran_is_not_refused_because_the_scheduler_leaves_or_is_full(code: str) -> None:
    async def check(engine: FakeEngine) -> None:
        engine.scheduler.reply = REPLY * 2
        engine.scheduler.fail = Failed(0, code, "Not now.", 503, 1)
        engine.scheduler.fail_after = 4
        texts = asyncio.create_task(text_of(engine, generation()))
        await asyncio.sleep(0.1)
        engine.scheduler.fail = None
        assert await texts == {0: REPLY * 2}

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


def test_a_gap_in_the_log_is_filled_and_repeats_are_dropped() -> None:
    def tokens(handle: int, first: int, *ids: int, last: bool = False) -> Tokens:
        finished = {handle: "length"} if last else {}
        columns = (pack([handle], "I"), pack([first], "I"), pack([len(ids)], "B"))
        return Tokens(*columns, pack(ids), finished)

    async def check(engine: FakeEngine) -> None:
        scheduler = engine.scheduler
        scheduler.hold = True
        texts = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine)
        for message in (tokens(1, 0, 97, 98), tokens(1, 1, 98, 99), tokens(1, 3, 100, last=True)):
            scheduler.push(message)
        assert await texts == {0: "abcd"}
        texts = asyncio.create_task(text_of(engine, generation()))
        await admitted(engine, 2)
        scheduler.seen.clear()
        scheduler.push(tokens(2, 0, 97))
        scheduler.push(tokens(2, 3, 100, last=True))
        async with asyncio.timeout(60):
            while not any(isinstance(m, Submit) for m in scheduler.seen):
                await asyncio.sleep(0.005)
        assert scheduler.aborted == [2]
        [again] = [m for m in scheduler.seen if isinstance(m, Submit)]
        assert again.handle == 2 and again.log == pack([97])
        scheduler.push(tokens(2, 4, 101))  # of the run before, on its way still
        scheduler.push(tokens(2, 1, 98, 99, last=True))
        assert await texts == {0: "abc"}

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
