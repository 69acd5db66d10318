"""The baton pass: a running sequence changes its worker, its keys first.

    source   runs ................................ evict
    target           pull ........ pages get names  place: finds them in its prefix cache
                     ^ Grant, Pull               ^ Pulled

The source goes on while the target pulls. What is pulled becomes part of the target's prefix cache,
and then the sequence moves like any that was preempted: it enters behind the longest known prefix
and computes the few tokens that are newer. So a transfer that fails, comes late or loses a worker
costs time and never a token: there is one way to continue, from the log.

Prefill workers pass on what they have begun, and draining workers all that they run.

Of a model whose layers see a window, a sequence may have given back its first pages. Then nothing
is pulled: the target computes it again from the log. Prefill workers give nothing back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from baton.protocol import Grant, Pull, Pulled, Revoke
from baton.tokens import pack
from baton_scheduler.events import Decision, Tell
from baton_scheduler.fleet import Fleet, Worker
from baton_scheduler.request import Sequence

_MOST_INBOUND = 4
"""Pulls that one worker runs at a time."""
_MOST_FAILURES = 2
"""After so many failed transfers a sequence stays where it is."""
_FEWEST_LEFT = 4
"""A sequence that is so close to its end is not worth a transfer."""


@dataclass(slots=True)
class Move:
    """One transfer under way. Both workers hold their pages until it has ended."""

    id: int
    sequence: Sequence
    source: str
    source_epoch: int
    target: str
    target_epoch: int
    start: int
    """Tokens before it were known to the target already."""
    end: int
    pages: list[int]
    """The target's, from the first token on."""


class Pass(NamedTuple):
    """A sequence that can change over from one worker to another now."""

    sequence: Sequence
    source: Worker
    target: Worker


class Moves:
    """All transfers under way, by number."""

    def __init__(self) -> None:
        self._moves: dict[int, Move] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def begin(self, fleet: Fleet) -> tuple[list[Decision], list[Pass]]:
        """Start what is due: everything that a prefill worker has begun, or a draining one runs.

        A sequence whose keys the target has already can change over at once.
        """
        decisions, ready = list[Decision](), list[Pass]()
        for source in fleet:
            if source.info.pages_address and (source.info.role == "prefill" or source.draining):
                for slot in _passable(source):
                    target = self._target(source, slot, fleet)
                    if target is None:
                        continue
                    started = self._start(source, slot, target)
                    decisions += started
                    if not started:
                        ready.append(Pass(source.batch.at(slot), source, target))
        return decisions, ready

    def end(self, name: str, pulled: Pulled, fleet: Fleet) -> tuple[list[Decision], Pass | None]:
        """A pull has ended. If it went well, and the sequence still runs at the source, it can
        change over now: the target knows its keys."""
        move, target = self._moves.get(pulled.id), fleet.get(name)
        if move is None or target is None or move.target_epoch != pulled.epoch:
            return [], None
        del self._moves[pulled.id]
        if pulled.reason:
            move.sequence.failures += 1
        else:
            target.adopt(move.sequence, move.pages, move.start, move.end)
        target.release(move.id)
        decisions = _let_go(move, fleet)
        source = fleet.get(move.source)
        if pulled.reason or source is None or move.sequence.worker != source.name:
            return decisions, None
        return decisions, Pass(move.sequence, source, target)

    def leave(self, worker: Worker, fleet: Fleet) -> list[Decision]:
        """A worker is gone. What it pulled is lost; what others pull of it will fail by itself."""
        decisions: list[Decision] = []
        for move in [m for m in self if m.target == worker.name]:
            del self._moves[move.id]
            decisions += _let_go(move, fleet)
        return decisions

    def layout(self) -> bytes:
        """Everything as bytes, for the state's digest."""
        rows = [
            (m.id, m.sequence.arrival, m.source_epoch, m.target_epoch, m.start, m.end, m.pages)
            for m in self
        ]
        return repr((self._count, rows)).encode()

    def check(self, fleet: Fleet) -> None:
        """Assert that workers hold pages for moves under way, and for no other."""
        ids = {move.id for move in self}
        for worker in fleet:
            assert worker.moving.keys() <= ids
        for move in self:
            target = fleet.get(move.target)
            assert target is not None and target.moving[move.id] == move.pages

    def _target(self, source: Worker, slot: int, fleet: Fleet) -> Worker | None:
        sequence = source.batch.at(slot)
        if any(move.sequence is sequence for move in self):
            return None
        able = [w for w in fleet if self._may_take(w, source, sequence)]
        return min(able, key=lambda w: w.load, default=None)

    def _may_take(self, worker: Worker, source: Worker, sequence: Sequence) -> bool:
        inbound = sum(move.target == worker.name for move in self)
        return (
            worker is not source
            and worker.info.role != "prefill"
            and worker.caching
            and worker.info.kv_layout == source.info.kv_layout
            and inbound < _MOST_INBOUND
            and worker.fits(sequence)
            and worker.has_room(sequence)
        )

    def _start(self, source: Worker, slot: int, target: Worker) -> list[Decision]:
        """Nothing when there is nothing to pull, or not all of it is there."""
        sequence, end = source.batch.at(slot), int(source.batch.settled[slot])
        start = target.known_tokens(sequence)
        if start + target.info.page_size > end or source.batch.dropped[slot]:
            return []
        self._count += 1
        number = self._count
        lent = source.lend(number, slot, end)
        pages = target.prepare(number, sequence, end)
        self._moves[number] = Move(
            number,
            sequence,
            source.name,
            source.epoch,
            target.name,
            target.epoch,
            start,
            end,
            pages,
        )
        token = _token(number, source, target)
        grant = Grant(source.epoch, number, token, pack(lent, "I"), end)
        address = source.info.pages_address
        pull = Pull(target.epoch, number, address, token, start, end, pack(pages, "I"))
        return [Tell(source.name, grant), Tell(target.name, pull)]


def _passable(source: Worker) -> list[int]:
    """Slots whose known tokens are all computed and that have some way to go."""
    batch = source.batch
    due = (batch.grant != 0) & (batch.settled >= batch.known) & (batch.known > 0)
    due &= batch.quota - batch.generated > _FEWEST_LEFT
    slots = [int(slot) for slot in due.nonzero()[0]]
    return [
        slot
        for slot in slots
        if batch.at(slot).pooling is None and batch.at(slot).failures < _MOST_FAILURES
    ]


def _let_go(move: Move, fleet: Fleet) -> list[Decision]:
    """The source may have its pages back, if it is still the one that lent them."""
    source = fleet.get(move.source)
    if source is None or source.epoch != move.source_epoch:
        return []
    source.release(move.id)
    return [Tell(source.name, Revoke(source.epoch, pack([move.id], "Q")))]


def _token(number: int, source: Worker, target: Worker) -> bytes:
    """16 bytes that nobody can guess who does not know both epochs, which are random."""
    parts = (number, source.name, source.epoch, target.name, target.epoch)
    return blake2b(repr(parts).encode(), digest_size=16).digest()
