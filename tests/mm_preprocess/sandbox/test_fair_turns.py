"""A small file waits for no more than a first try, whoever else sends what."""

from __future__ import annotations

import threading
import time

import pytest

from baton.errors import Unavailable
from baton_mm_preprocess.sandbox.fair_turns import FairTurns
from tests.support.served_system import until

NEVER = float("inf")


class Crowd:
    """Files in threads; says in which order they had their turns, and holds one until told."""

    def __init__(self, places: int) -> None:
        self.turns = FairTurns(places)
        self.order: list[str] = []
        self.threads: list[threading.Thread] = []

    def send(
        self, name: str, tenant: str, cost: int = 1, seconds: float = 0.0, slow: bool = False
    ) -> None:
        def run() -> None:
            with self.turns.turn(tenant, cost, NEVER, slow=slow):
                self.order.append(name)
                time.sleep(seconds)

        waiting = len(self.turns._waiting)
        free = len(self.turns._running) < self.turns._places
        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)
        until(lambda: free or len(self.turns._waiting) > waiting, "it waits")

    def end(self) -> list[str]:
        for thread in self.threads:
            thread.join()
        return self.order


def test_tenants_take_turns_by_time_and_their_small_files_go_first() -> None:
    crowd = Crowd(1)
    crowd.send("first", "a", seconds=0.3)
    until(lambda: crowd.order == ["first"], "it runs")
    for number in range(3):
        crowd.send(f"a{number}", "a", cost=1000, seconds=0.01)
    crowd.send("a-small", "a", cost=10)
    crowd.send("b-large", "b", cost=10**6)
    assert crowd.end() == ["first", "b-large", "a-small", "a0", "a1", "a2"]


def test_the_slow_go_behind_and_leave_a_place() -> None:
    crowd = Crowd(2)
    crowd.send("slow1", "a", seconds=0.4, slow=True)
    until(lambda: crowd.order == ["slow1"], "it runs")
    waits = threading.Thread(target=crowd.send, args=("slow2", "c", 1, 0.0, True))
    waits.start()
    until(lambda: len(crowd.turns._waiting) == 1, "the other place is for those that are not slow")
    crowd.send("quick", "b")
    waits.join()
    assert crowd.end() == ["slow1", "quick", "slow2"]


def test_waiting_ends() -> None:
    turns = FairTurns(1)
    with turns.turn("a", 1, NEVER):
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught, turns.turn("b", 1, started + 0.05):
            raise AssertionError("it has no place")
        assert caught.value.retry_after and 0.04 < time.monotonic() - started < 5
        turns.close()
        with pytest.raises(Unavailable), turns.turn("b", 1, NEVER):
            raise AssertionError("it is closed")
    assert not turns._waiting and not turns._running
