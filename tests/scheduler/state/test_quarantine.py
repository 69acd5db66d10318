"""Who brings workers down is found, and nobody else pays for it."""

from __future__ import annotations

from math import log2

import msgspec
import pytest

from baton.protocol import Sampling
from baton.protocol.token_columns import pack
from baton_scheduler.events import Cause, DeathExplained, WorkerDraining
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state.quarantine import EXIT_STATUS_SECONDS
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler_world import Request, World, failure

SUPERVISED = msgspec.structs.replace(worker_info(), supervised=True)


class Poisoned(World):
    """Workers die in a step that runs the poison at or after a token of its, and come back."""

    def __init__(self, workers: int = 1, roles: tuple[str, ...] = ("both",)) -> None:
        super().__init__()
        self.poison: Request | None = None
        self.at, self.deaths = 0, 0
        self.cause: Cause = "inside"
        self.names = [f"{role}{n}" for n in range(workers) for role in roles]
        for name in self.names:
            self._come(name)

    def _come(self, name: str) -> None:
        role = name[:-1]
        self.join(name, worker_info(role=role, pages_address="" if role == "both" else name))

    def run(self, name: str = "w", late: int = 0, during: int = 0) -> bool:
        if name not in self.peers or not self._dies(name):
            return name in self.peers and super().run(name, late, during)
        self.deaths += 1
        self.lose_worker(name, cause=self.cause)
        self._come(name)
        return False

    def _dies(self, name: str) -> bool:
        worker = self.state.fleet.get(name)
        if worker is None or self.poison is None or not worker.flights:
            return False
        there = (worker.batch.at(s) for s in worker.flights.first.rows if worker.batch.lease_id[s])
        mine = [s for s in there if s.submit.tokens == pack(self.poison.prompt)]
        return any(len(sequence.log) >= self.at for sequence in mine)


def innocent(request: Request) -> bool:
    whole = expected_tokens(request.prompt, request.sampling)
    return (request.tokens, request.end) == whole


@pytest.mark.parametrize(
    ("workers", "roles", "at"),
    [(1, ("both",), 0), (1, ("both",), 3), (2, ("both",), 2), (1, ("prefill", "decode"), 5)],
)
def test_a_planted_poison_is_found_within_a_logarithm_of_deaths(
    workers: int, roles: tuple[str, ...], at: int
) -> None:
    for rows, culprit in ((16, 0), (16, 9), (16, 15), (5, 4), (1, 0)):
        world = Poisoned(workers, roles)
        requests = [world.submit([n, 1, 2], Sampling(12, seed=n)) for n in range(rows)]
        world.poison, world.at = requests[culprit], at
        world.finish()
        assert failure(world.poison).code == "request_quarantined"
        assert all(innocent(r) for r in requests if r is not world.poison)
        # All rows of these few were together at the first death; alone twice is once more.
        assert world.deaths <= log2(16) + 1 + 1, (rows, culprit, world.deaths)
        world.tick()
        assert not world.state.searches


def test_deaths_from_outside_never_count() -> None:
    world = Poisoned()
    world.cause = "outside"
    requests = [world.submit([n], Sampling(20, seed=n)) for n in range(4)]
    for _ in range(9):
        world.round()
        world.lose_worker("both0")
        world.join("both0")
        assert not world.state.searches
    world.finish()
    assert all(innocent(r) for r in requests)


@pytest.mark.parametrize("verdict", ["outside", "inside", None])
def test_suspects_wait_for_the_word_of_a_supervisor(verdict: Cause | None) -> None:
    world = World(SchedulerOptions(max_worker_losses=1))
    peer = world.join("w", SUPERVISED)
    world.join("other", SUPERVISED)
    world.apply(WorkerDraining("other"))
    request = world.submit([1], Sampling(9))
    world.round()
    world.lose_worker("w", cause="unknown")
    world.join("w", SUPERVISED)
    world.round()
    assert request.end is None and world.state.num_running == 0
    if verdict is not None:
        world.apply(DeathExplained(peer.epoch + 77, "outside"))
        assert world.state.searches
        world.apply(DeathExplained(peer.epoch, verdict))
    else:
        world.tick(EXIT_STATUS_SECONDS)
    world.finish()
    assert (request.end == "failed") == (verdict != "outside")


def test_a_lost_connection_is_forgiven_once_its_process_joins_again() -> None:
    """Without a supervisor it counts at first: the process may have crashed."""
    world = World()
    request = world.submit([1], Sampling(90))
    for back in (True, True, True, False, False):
        assert request.end is None
        peer = world.join("w")
        world.round()
        world.lose_worker("w", cause="unknown")
        if back:
            world.apply(DeathExplained(peer.epoch, "outside"))
            assert all(s.cell is None for s in world.state.live.values())
    assert failure(request).code == "request_quarantined"


def test_who_was_found_alone_is_forgiven_a_death_from_outside() -> None:
    world = World()
    for cause in ("inside", "outside", "outside", "inside"):
        request = world.requests.get(("g", 1)) or world.submit([1], Sampling(90))
        world.join("w")
        world.round()
        assert request.end is None
        world.lose_worker("w", cause=cause)
    assert failure(request).code == "request_quarantined"


def test_others_run_meanwhile_elsewhere_and_wait_for_no_longer_than_a_trial() -> None:
    world = Poisoned(2)
    old = [world.submit([n], Sampling(40, seed=n)) for n in range(8)]
    world.round()
    world.lose_worker("both0", cause="inside")
    world.join("both0")
    world.tick()
    assert [w.trial is not None for w in world.state.fleet].count(True) == 1
    late = world.submit([99], Sampling(5))
    for _ in range(12):
        world.round()
    assert late.end == "length" and not world.state.searches
    world.finish()
    assert all(innocent(r) for r in old)


def test_a_trial_moves_on_when_its_worker_drains() -> None:
    world = World()
    world.join("w")
    requests = [world.submit([n], Sampling(30, seed=n)) for n in range(4)]
    world.round()
    world.lose_worker("w", cause="inside")
    world.join("w")
    world.tick()
    world.apply(WorkerDraining("w"))
    world.join("new")
    world.finish()
    assert all(innocent(r) for r in requests)


def test_two_that_kill_together_only_come_to_an_end() -> None:
    """Neither dies in its half. They end apart, after some deaths."""

    class Pair(Poisoned):
        def _dies(self, name: str) -> bool:
            worker = self.state.fleet.get(name)
            if worker is None or not worker.flights:
                return False
            rows = worker.flights.first.rows
            there = [worker.batch.at(s) for s in rows if worker.batch.lease_id[s]]
            return sum(s.arrival in (1, 4) and len(s.log) > 2 for s in there) == 2

    world = Pair()
    requests = [world.submit([n], Sampling(60, seed=n)) for n in range(4)]
    world.finish()
    assert all(innocent(r) for r in requests) and world.deaths < 20
