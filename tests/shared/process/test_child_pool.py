"""Children that answer, take too long, die, and are replaced."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton.process import child_pool as module
from baton.process.child_pool import ChildDied, ChildPool, ChildTimeout

ROOT = Path(__file__).parents[3]
MODULE = "tests.fakes.sandbox_child"


def pool_of(size: int = 1, setup: bytes = b"set") -> ChildPool:
    return ChildPool(MODULE, setup, size, "Sleeping")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildPool]:
    monkeypatch.chdir(ROOT)
    made = pool_of()
    yield made
    made.close()


def ask(pool: ChildPool, request: bytes, seconds: float = 30.0) -> bytes:
    return pool.submit(lambda: pool.exchange(request, seconds)).result(60)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def alone(pool: ChildPool) -> module.Child:
    [child] = pool._children
    return child


def test_one_child_answers_one_after_the_other(pool: ChildPool) -> None:
    pool.start()
    assert [ask(pool, b"a"), ask(pool, b"b")] == [b"set a", b"set b"]
    assert ask(pool, b"pid") == ask(pool, b"pid")


def test_one_that_takes_too_long_is_killed_and_replaced(pool: ChildPool) -> None:
    before = ask(pool, b"pid")
    with pytest.raises(ChildTimeout):
        ask(pool, b"sleep", seconds=0.1)
    assert ask(pool, b"pid") != before and alone(pool).alive


def test_one_that_dies_is_told_apart_and_replaced(pool: ChildPool) -> None:
    with pytest.raises(ChildDied) as caught:
        ask(pool, b"die")
    assert not isinstance(caught.value, ChildTimeout)
    assert ask(pool, b"a") == b"set a"


def test_an_idle_one_that_has_died_costs_no_request(pool: ChildPool) -> None:
    ask(pool, b"a")
    child = alone(pool)
    child.kill()
    until(lambda: not child.alive)
    assert ask(pool, b"b") == b"set b"


def test_a_child_in_the_middle_of_a_message_is_not_used_again(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(pool, b"a")
    child = alone(pool)

    def fault(*_: object, wall: bool) -> bytes:
        raise KeyError

    monkeypatch.setattr(child, "exchange", fault)
    with pytest.raises(KeyError):
        ask(pool, b"b")
    assert not child.alive and pool._children == set()


def test_none_can_be_started(pool: ChildPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match=r"Sleeping is not available.*Try again later"):
        ask(pool, b"a")
    assert pool._children == set()


def test_a_setup_that_fails_is_not_available(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(ROOT)
    pool = pool_of(setup=b"bad")
    with pytest.raises(Unavailable):
        ask(pool, b"a")
    assert "a child process for Sleeping does not start" in caplog.text
    pool.close()


def test_what_is_slow_delays_nobody_else() -> None:
    """Two threads: one waits for the other's end, which it could not if they took turns."""
    both, pair = threading.Barrier(2, timeout=60), pool_of(size=2)
    futures = [pair.submit(both.wait) for _ in range(2)]
    assert sorted(future.result(60) for future in futures) == [0, 1]
    pair.close()


def test_closing_ends_running_work_and_drops_the_rest(pool: ChildPool) -> None:
    ask(pool, b"a")
    child = alone(pool)
    running = pool.submit(lambda: pool.exchange(b"sleep", 600))
    until(running.running)
    queued = pool.submit(lambda: pool.exchange(b"b", 600))
    pool.close()
    with pytest.raises(ChildDied):
        running.result(0)
    assert queued.cancelled() and not child.alive and pool._children == set()
    with pytest.raises(ChildDied):
        pool.exchange(b"c", 600)


async def test_calls_of_a_coroutine(pool: ChildPool) -> None:
    assert await pool.call(b"a", 30.0) == b"set a"
    with pytest.raises(ChildTimeout):
        await pool.call(b"sleep", 0.1)


async def test_a_cancelled_call_kills_its_child(pool: ChildPool) -> None:
    await pool.call(b"a", 30.0)
    child = alone(pool)
    task = asyncio.create_task(pool.call(b"sleep", 600))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await pool.call(b"b", 30.0) == b"set b"
    assert not child.alive and pool._children != {child}


async def test_a_call_that_is_cancelled_while_its_child_starts(
    pool: ChildPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, go, new = threading.Event(), threading.Event(), pool._new

    def slow() -> module.Child:
        taken.set()
        assert go.wait(60)
        return new()

    monkeypatch.setattr(pool, "_new", slow)
    task = asyncio.create_task(pool.call(b"sleep", 600))
    assert await asyncio.to_thread(taken.wait, 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    go.set()
    assert await pool.call(b"b", 30.0) == b"set b"


async def test_a_late_cancellation_does_not_kill_the_child_of_the_next_call(
    pool: ChildPool,
) -> None:
    late = module.Cancellation()
    await asyncio.to_thread(pool.exchange, b"a", 30.0, late)
    child = alone(pool)
    late.cancel()
    assert await pool.call(b"b", 30.0) == b"set b" and alone(pool) is child
