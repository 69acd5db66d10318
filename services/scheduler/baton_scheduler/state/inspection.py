"""The digest of the state, and the check of its invariants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from hashlib import blake2b

from baton_scheduler.sequence import Sequence
from baton_scheduler.state.base import StateBase
from baton_scheduler.workers.worker import Worker


def digest(state: StateBase) -> bytes:
    """16 bytes that differ whenever a decision could. Logs count by length only, since their
    tokens are in the decisions, which a recording also hashes."""
    total = blake2b(digest_size=16)
    for part in _parts(state):
        total.update(part)
    return total.digest()


def _parts(state: StateBase) -> Iterator[bytes]:
    yield repr((state.now, state.draining, state.alone_since, state.numbers)).encode()
    yield repr(astuple(state.counters)).encode()
    yield state.adapters.layout() + repr(sorted(state.commands.items())).encode()
    yield repr((sorted(state.paused), state.pausing)).encode()
    yield repr((sorted(state.weights.items()), sorted(state.updates.items()))).encode()
    yield state.queue.layout()
    yield state.handoffs.layout()
    yield state.encodings.layout()
    yield state.placement.layout()
    yield from (search.layout() for search in state.searches)
    yield from map(_sequence_part, state.live.values())
    for worker in state.fleet:
        yield from _worker_parts(worker)


def _sequence_part(s: Sequence) -> bytes:
    place = (s.gateway, s.handle, s.key, len(s.log), s.losses, s.worker, s.slot)
    towards = (s.decode_target, s.num_pull_tokens, s.mark, s.deaths, s.lone_deaths)
    media = (s.num_awaited, s.media_worker, s.num_pulls)
    now = (s.cached, s.deadline, s.prompt_cached, s.waits, s.phase_timer.mark, s.weights)
    return repr((*place, *towards, *media, *now)).encode()


def _worker_parts(worker: Worker) -> Iterator[bytes]:
    f = worker.flights
    ends = (f.first_step, f.next_step, f.truncated, f.wasteful)
    flights = [(flight.step, flight.sent_at) for flight in f]
    weights = (worker.target.digest, worker.loaded, worker.switching)
    identity = (worker.name, worker.epoch, worker.info.role)
    evicting = sorted(worker.evicting)
    yield repr((*identity, *weights, evicting, *ends, flights)).encode()
    yield worker.media_layout()
    yield worker.batch.layout()
    yield worker.pool.layout()


def check(state: StateBase) -> None:
    """Assert all invariants of the state and its parts."""
    for worker in state.fleet:
        worker.check()
    state.handoffs.check(state.fleet)
    state.encodings.check()
    places = [worker.batch.at(slot) for worker in state.fleet for slot in worker.batch.occupied()]
    assert all(
        worker.batch.at(slot).model in ("", worker.info.model)
        for worker in state.fleet
        for slot in worker.batch.occupied()
    )
    assert all(s.worker is None for s in state.queue)
    together = sorted(s.arrival for s in (*places, *state.queue))
    assert together == sorted(s.arrival for s in state.live.values())
    assert state.queue.num_tokens == sum(s.num_tokens for s in state.queue)
    assert not any(s.ended for s in state.live.values())
    cells = [cell for search in state.searches for cell in search.cells]
    assert all(s.cell is None or s.cell in cells for s in state.live.values())
    assert all(s.cell is cell for cell in cells for s in cell.members)
    assert all(w.trial is None or w.trial in cells for w in state.fleet)
    assert all(s.cell is None or s.cell.worker == s.worker for s in places)
