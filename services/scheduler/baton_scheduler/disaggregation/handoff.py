"""Handoff: move a running sequence to another worker after transferring its KV.

    source   prefill ........ runs ..................... evict
    target       pull .. pull .. pull .. pages are hashed  place: a hit in its prefix cache
                 ^ Grant, Pull                         ^ Pulled

The source continues while the target pulls. Finished parts of a long prompt are pulled while the
rest is computed, so that little is left at its first token. Pulled pages enter the target's prefix
cache; then the sequence moves like a preempted one: it enters behind the longest cached prefix and
computes the few newer tokens. So a transfer that fails, is late or loses a worker costs time but
never a token.

Prefill workers hand off the sequences they have prefilled, draining workers all that they run.

In layers with a window, only KV that future tokens attend to is pulled. The source keeps a little
more, so that whole pages of any size can be filled. If it has freed a page that is needed, nothing
is pulled, and the target recomputes the sequence from its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from baton.protocol import Grant, Pull, Pulled, Revoke
from baton.protocol.token_columns import pack
from baton_scheduler.block_table import Tables, column, flat
from baton_scheduler.disaggregation.transfer_stats import TransferTotals
from baton_scheduler.events import Decision, WorkerMessage
from baton_scheduler.placement.placement import Placement, decode_candidates, kv_compatible
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker

_MOST_INBOUND = 4
"""Maximum number of concurrent pulls per worker."""
_MOST_FAILURES = 2
"""Number of failed transfers after which a sequence stays where it is."""
_LEAST_PART = 128
"""Minimum number of tokens to pull before the prompt is complete."""
_FEWEST_LEFT = 4
"""Minimum number of remaining output tokens for a transfer to pay off."""


@dataclass(slots=True)
class Handoff:
    """One transfer in progress. Both workers keep its pages until it ends."""

    id: int
    sequence: Sequence
    source: str
    source_epoch: int
    target: str
    target_epoch: int
    start: int
    """Number of leading tokens that the target already had."""
    end: int
    tables: Tables
    """Block tables of the target."""
    last: bool
    """The prompt was complete at its start: the sequence moves when the transfer ends."""


class ReadyHandoff(NamedTuple):
    """A sequence that can move to another worker now."""

    sequence: Sequence
    source: Worker
    target: Worker


class Handoffs:
    """All transfers in progress, by number."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._moves: dict[int, Handoff] = {}
        self._count = 0
        self.moved_tokens = 0
        """Tokens whose KV was pulled from another worker."""
        self.transfer_totals = TransferTotals()

    def __len__(self) -> int:
        return len(self._moves)

    def __iter__(self) -> Iterator[Handoff]:
        return iter(self._moves.values())

    def begin(self, fleet: Fleet) -> tuple[list[Decision], list[ReadyHandoff]]:
        """Start the transfers that are due, from prefill and draining workers.

        Sequences whose KV the target already has are returned as ready.
        """
        decisions, ready = list[Decision](), list[ReadyHandoff]()
        sources = (w for w in fleet if w.info.role == "prefill" or w.draining)
        for source in (w for w in sources if w.info.kv_address):
            for slot in ready_handoffs(source):
                if (target := self._target(source, slot, fleet)) is None:
                    continue
                started = self._start(source, slot, target)
                decisions += started
                if not started:
                    ready.append(ReadyHandoff(source.batch.at(slot), source, target))
            for slot in filling(source):
                decisions += self._start_part(source, slot, fleet)
        return decisions, ready

    def failed(self, pulled: Pulled) -> bool:
        """Whether a pull has failed that its sequence needed. One that ended during the pull did
        not: its draining source may have exited since."""
        move = self._moves.get(pulled.id)
        return bool(pulled.reason) and not (move is not None and move.sequence.ended)

    def end(
        self, name: str, pulled: Pulled, fleet: Fleet
    ) -> tuple[list[Decision], ReadyHandoff | None]:
        """Process the end of a pull. If it succeeded and the sequence still runs on the source, the
        sequence is ready to move."""
        move, target = self._moves.get(pulled.id), fleet.get(name)
        if move is None or target is None or move.target_epoch != pulled.epoch:
            return [], None
        del self._moves[pulled.id]
        self.transfer_totals.add(pulled)
        if pulled.reason:
            move.sequence.failures += 1
        else:
            seconds = pulled.duration_us / 1e6
            self.moved_tokens += move.end - move.start
            self._placement.links.add(move.source, name, pulled.num_bytes, seconds)
            target.transfer_pages.adopt(move.sequence, move.tables, move.start, move.end)
        target.transfer_pages.release(move.id)
        decisions = _let_go(move, fleet)
        source = fleet.get(move.source)
        moved = source is None or move.sequence.worker != source.name
        if pulled.reason or source is None or moved or not move.last:
            return decisions, None
        return decisions, ReadyHandoff(move.sequence, source, target)

    def leave(self, worker: Worker, fleet: Fleet) -> list[Decision]:
        """Drop a departed worker's pulls; pulls from it by other workers fail on their own."""
        self._placement.links.forget(worker.name)
        decisions: list[Decision] = []
        for move in [m for m in self if m.target == worker.name]:
            del self._moves[move.id]
            decisions += _let_go(move, fleet)
        return decisions

    def layout(self) -> bytes:
        """Everything as bytes, for the state's digest."""
        rows = [
            (m.id, m.sequence.arrival, m.source_epoch, m.target_epoch, m.start, m.end, m.last)
            for m in self
        ]
        tables = [[(table.first, table.pages) for table in m.tables] for m in self]
        return repr((self._count, rows, tables)).encode()

    def check(self, fleet: Fleet) -> None:
        """Assert that workers pin pages only for transfers in progress."""
        ids = {move.id for move in self}
        for worker in fleet:
            assert worker.transfer_pages.numbers <= ids
        for move in self:
            target = fleet.get(move.target)
            assert target is not None and target.transfer_pages[move.id] == flat(move.tables)

    def _target(self, source: Worker, slot: int, fleet: Fleet) -> Worker | None:
        sequence = source.batch.at(slot)
        if any(move.sequence is sequence for move in self):
            return None
        mates = fleet.serving(source.info.model)
        busy = Counter(move.target for move in self)
        able = [
            w
            for w in decode_candidates(sequence, mates)
            if kv_compatible(source, w) and busy[w.name] < _MOST_INBOUND
        ]
        bound = [w for w in able if w.name == sequence.decode_target]
        if bound:
            return bound[0]
        return self._placement.place_decode(sequence, source, able, mates) if able else None

    def _start_part(self, source: Worker, slot: int, fleet: Fleet) -> list[Decision]:
        """Pull the complete pages of a prompt that is being computed."""
        target = self._target(source, slot, fleet)
        if target is None:
            return []
        size, sequence = target.info.page_size, source.batch.at(slot)
        end = int(source.batch.num_confirmed[slot]) // size * size
        sequence.decode_target, sequence.num_pull_tokens = target.name, end
        return self._start(source, slot, target, end)

    def _start(
        self, source: Worker, slot: int, target: Worker, part: int | None = None
    ) -> list[Decision]:
        """Start a transfer; no messages if there is nothing to pull, or pages are missing."""
        sequence, end = source.batch.at(slot), part or int(source.batch.num_confirmed[slot])
        start = target.kv.num_cached_tokens(sequence)
        if start + target.info.page_size > end or not _has_all(source, slot, target, end):
            return []
        if target.pool.host is not None:  # A pull could overwrite pages being swapped out.
            return []
        self._count += 1
        number = self._count
        pinned = source.transfer_pages.pin(number, slot, end)
        tables = target.transfer_pages.prepare(number, sequence, end)
        workers = source.name, source.epoch, target.name, target.epoch
        move = Handoff(number, sequence, *workers, start, end, tables, last=part is None)
        self._moves[number] = move
        return _opening(move, source, target, pinned)


def _opening(move: Handoff, source: Worker, target: Worker, pinned: Tables) -> list[Decision]:
    """The grant for the source's pinned pages, and the order to pull them."""
    number, start, end = move.id, move.start, move.end
    token, address = _token(number, source, target), source.info.kv_address
    grant = Grant(source.epoch, number, token, column(pinned), end)
    pages = column(move.tables)
    pull = Pull(target.epoch, number, address, token, start, end, pages, source.epoch)
    return [WorkerMessage(source.name, grant), WorkerMessage(target.name, pull)]


def _has_all(source: Worker, slot: int, target: Worker, end: int) -> bool:
    """True if a slot still has all pages that the target attends to after the last whole page."""
    size, groups = target.info.page_size, target.groups
    firsts = (groups.first(group, end // size * size) * size for group in range(len(groups)))
    had = (table.first * source.info.page_size for table in source.batch.tables(slot))
    return all(mine <= first for mine, first in zip(had, firsts, strict=True))


def ready_handoffs(source: Worker) -> list[int]:
    """Slots whose known tokens are all computed and that have enough output left."""
    batch = source.batch
    ready = (batch.lease_id != 0) & (batch.num_confirmed >= batch.num_known) & (batch.num_known > 0)
    ready &= batch.max_output_tokens - batch.generated > _FEWEST_LEFT
    slots = [int(slot) for slot in ready.nonzero()[0]]
    return [slot for slot in slots if _may_move(batch.at(slot))]


def filling(source: Worker) -> list[int]:
    """Slots with a partly computed prompt, and no pull of it in progress.

    None with windowed layers, where early pages would have left the window by the end.
    """
    batch = source.batch
    if not source.groups.plain:
        return []
    ready = (
        (batch.lease_id != 0)
        & (batch.num_confirmed < batch.num_known)
        & (batch.num_confirmed >= _LEAST_PART)
    )
    slots = [int(slot) for slot in ready.nonzero()[0]]
    return [slot for slot in slots if _fresh_part(source, slot)]


def _fresh_part(source: Worker, slot: int) -> bool:
    sequence, settled = source.batch.at(slot), int(source.batch.num_confirmed[slot])
    return (
        settled >= sequence.num_pull_tokens + _LEAST_PART
        and sequence.sampling.max_tokens > _FEWEST_LEFT
        and _may_move(sequence)
    )


def _may_move(sequence: Sequence) -> bool:
    """False for vectors, for sequences whose transfer keeps failing, and for suspects, which run on
    this worker for a trial."""
    tried = sequence.failures >= _MOST_FAILURES
    return sequence.pooling is None and sequence.cell is None and not tried


def _let_go(move: Handoff, fleet: Fleet) -> list[Decision]:
    """Revoke the grant and release the source's pages, if the source is still in the same epoch."""
    source = fleet.get(move.source)
    if source is None or source.epoch != move.source_epoch:
        return []
    source.transfer_pages.release(move.id)
    return [WorkerMessage(source.name, Revoke(source.epoch, pack([move.id], "Q")))]


def _token(number: int, source: Worker, target: Worker) -> bytes:
    """16 bytes, derived from both epochs, which are random and secret."""
    parts = (number, source.name, source.epoch, target.name, target.epoch)
    return blake2b(repr(parts).encode(), digest_size=16).digest()
