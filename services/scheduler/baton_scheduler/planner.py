"""Planner: builds a worker's next plan from decode rows and prefill chunks under a token budget.

Batching is continuous (Orca, OSDI 2022): rows join and leave at every step. Pages are allocated one
at a time (vLLM, SOSP 2023); prompts run in chunks that share steps with decode rows (Sarathi-Serve,
OSDI 2024). Plans are sent ahead of results: a row counts as advanced once it is planned, so the
next plan can run it again, one position further.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baton.protocol import NewSequence, Plan
from baton.protocol.token_columns import pack
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints, SlotTable
from baton_scheduler.workers.in_flight import InFlightStep
from baton_scheduler.workers.worker import Worker

_ONE = b"\x01\0\0\0"
"""uint32 column entry of a decode row's token count."""


class ScheduledRows(NamedTuple):
    """Rows of a step: slots and token counts, decode rows first."""

    slots: Ints
    counts: Ints
    decode: bool
    """All rows are decode rows."""


class NewPages(NamedTuple):
    """Pages to append, per slot and page group."""

    slots: list[int]
    groups: list[int]
    counts: list[int]
    numbers: list[int]
    """Page numbers, concatenated."""

    def add(self, slot: int, pages: list[list[int]]) -> None:
        """Append pages to a slot, group by group."""
        for group, some in enumerate(pages):
            if some:
                self.slots.append(slot)
                self.groups.append(group)
                self.counts.append(len(some))
                self.numbers.extend(some)

    def add_each(self, slots: list[int], numbers: list[int]) -> None:
        """Append one page of group 0 to each of these slots."""
        self.slots.extend(slots)
        self.groups.extend([0] * len(slots))
        self.counts.extend([1] * len(slots))
        self.numbers.extend(numbers)


class DroppedPages(NamedTuple):
    """Number of leading blocks without pages, per slot and page group."""

    slots: list[int]
    groups: list[int]
    counts: list[int]


class PageCopies(NamedTuple):
    """Pages to swap or copy before the rows run."""

    swap_out: list[int]
    """(page, host page), (page, host page), ..."""
    swap_in: list[int]
    """(host page, page), ..."""
    sources: list[int]
    targets: list[int]
    """Destination pages, parallel to the sources."""


def plan(worker: Worker, now: float, most: int = 1) -> tuple[Plan | None, list[Sequence]]:
    """Plan a worker's next step. Returns the plan and the sequences preempted for lack of pages.

    The plan is None if there is nothing to do. The worker's batch is advanced as if the step had
    run, and the step is recorded in `worker.flights`. A plan without rows lets an idle worker
    release slots. If every row decodes, the plan covers up to `most` steps, each with its own
    record.
    """
    worker.shed()
    pages, preempted, decode = _make_room(worker)
    rows = _choose(worker, decode)
    if not len(rows.slots) and (worker.flights or not worker.batch.pending_release):
        return None, preempted
    turns = _repeat(worker, rows, pages, most)
    # All pages of this plan are taken by now, so its evictions are complete.
    fresh = _fresh(worker.batch, rows)
    moves = PageCopies(*worker.starts.swaps_for(fresh), *worker.starts.copies(fresh))
    enter = _enter(worker, fresh, pages)
    message = _message(worker, rows, turns, enter, pages, moves, now)
    return message, preempted


def _make_room(worker: Worker) -> tuple[NewPages, list[Sequence], Ints]:
    """Give each decode row that has filled its pages a page in every group, and in windowed groups
    the next prefill chunks theirs. Also returns the decode rows.

    If pages run out, the last sequence in the order of service is preempted. A later sequence never
    preempts an earlier one, so the first one always finishes.
    """
    batch = worker.batch
    decode = batch.decoding()
    short = decode[batch.num_scheduled.take(decode) >= batch.capacity.take(decode)].tolist()
    plain = worker.groups.plain
    chunks = {} if plain else _chunks(worker, len(decode))
    grown, preempted = NewPages([], [], [], []), list[Sequence]()
    turn = sorted((*short, *chunks), key=lambda slot: batch.at(slot).key)
    if plain and len(turn) <= worker.pool.num_free:
        grown.add_each(turn, worker.keys.grow_each(turn))
    else:
        _grow(worker, turn, chunks, grown, preempted)
    _spare(worker, decode, grown)
    return grown, preempted, batch.decoding() if preempted else decode


def _grow(
    worker: Worker,
    slots: list[int],
    chunks: dict[int, int],
    grown: NewPages,
    preempted: list[Sequence],
) -> None:
    """Give pages to slots in order while there are free ones."""
    batch = worker.batch
    for slot in slots:
        if batch.lease_id[slot] and _yield_to(worker, slot, preempted):
            _extend(worker, slot, chunks.get(slot, 1), grown)


def _chunks(worker: Worker, left: int) -> dict[int, int]:
    """Slot -> number of prompt tokens in its next chunk, if there are enough pages; `left` is the
    budget without the decode rows."""
    batch, chunks, left = worker.batch, dict[int, int](), worker.budget - left
    for slot in batch.prefilling():
        chunk = min(left, int(batch.num_known[slot] - batch.num_scheduled[slot]))
        if chunk <= 0:
            break
        chunks[slot] = chunk
        left -= chunk
    return chunks


def _yield_to(worker: Worker, slot: int, preempted: list[Sequence]) -> bool:
    """Preempt others until there are pages for the next token of a sequence. Returns False if there
    are still none: the sequence was preempted too, or waits for pages that its own in-flight steps
    free."""
    batch, pool, windowed = worker.batch, worker.pool, bool(worker.groups.windowed)
    keys = worker.keys
    needed = sum(keys.lacking(slot, keys.num_blocks(int(batch.num_scheduled[slot]) + 1)))
    if windowed and needed > pool.num_free:
        worker.shed(slack=False)
    while batch.lease_id[slot] and needed > pool.num_free:
        last = batch.last()
        if last == slot and windowed and worker.flights.run(slot, int(batch.lease_id[slot])):
            return False
        preempted.append(worker.evict(last))
    return bool(batch.lease_id[slot])


def _extend(worker: Worker, slot: int, count: int, grown: NewPages) -> None:
    """Take pages for the next token of a sequence, and for `count` tokens if one page stays free
    for every other sequence. Slots that the worker does not know yet get theirs as they enter."""
    batch, keys, planned = worker.batch, worker.keys, int(worker.batch.num_scheduled[slot])
    least, blocks = keys.num_blocks(planned + 1), keys.num_blocks(planned + count)
    spare = worker.pool.num_free - (len(batch) - 1) * len(worker.groups)
    lacking = keys.lacking(slot, blocks)
    while blocks > least and sum(lacking) > spare:
        blocks -= 1
        lacking = keys.lacking(slot, blocks)
    pages = keys.grow(slot, lacking)
    if batch.sent[slot]:
        grown.add(slot, pages)


def _spare(worker: Worker, decode: Ints, grown: NewPages) -> None:
    """Take a page ahead for rows with a variable number of tokens, if one stays free for every
    sequence."""
    batch, size = worker.batch, worker.info.page_size
    if not batch.num_variable_tokens:
        return
    near = (
        batch.variable_tokens
        & (batch.num_scheduled + size > batch.capacity)
        & (batch.capacity <= batch.max_computed)
    )
    for slot in decode[near[decode]].tolist():
        if batch.lease_id[slot] and worker.pool.num_free > len(batch) * len(worker.groups):
            grown.add(slot, worker.keys.grow(slot, [1] * len(worker.groups)))


def _choose(worker: Worker, decode: Ints) -> ScheduledRows:
    """All decode rows, then prefill chunks in the order of service within the token budget."""
    batch = worker.batch
    if worker.groups.windowed:  # Rows without pages skip this step.
        decode = decode[batch.num_scheduled[decode] < batch.capacity[decode]]
    ones = np.ones(len(decode), np.int64)
    if not batch.pending_prefill_tokens:
        return ScheduledRows(decode, ones, decode=True)
    left = worker.budget - len(decode)
    slots, counts = [], []
    for slot in batch.prefilling():
        if left <= 0:
            break
        rest = int(batch.num_known[slot] - batch.num_scheduled[slot])
        if rest > left and batch.at(slot).whole:
            break  # It comes first in the next step, which has room for it.
        chunk = min(left, rest, int(batch.capacity[slot] - batch.num_scheduled[slot]))
        if not chunk:
            continue
        slots.append(slot)
        counts.append(chunk)
        left -= chunk
    batch.pending_prefill_tokens -= sum(counts)
    return ScheduledRows(
        np.concatenate((decode, np.array(slots, np.int64))),
        np.concatenate((ones, np.array(counts, np.int64))),
        decode=not slots,
    )


def _fresh(batch: SlotTable, rows: ScheduledRows) -> list[int]:
    """Slots among the rows that the worker does not know yet."""
    return rows.slots[~batch.sent[rows.slots]].tolist() if batch.num_unsent else []


def _repeat(worker: Worker, rows: ScheduledRows, pages: NewPages, most: int) -> Ints:
    """Number of steps that each row runs in: one, or as many as its limit and the free pages
    allow."""
    batch, slots = worker.batch, rows.slots
    if most == 1 or batch.pending_prefill_tokens or not len(slots) or not rows.decode:
        return np.ones(len(slots), np.int64)
    left = batch.max_computed[slots] - batch.num_scheduled[slots]
    while True:
        turns: Ints = np.minimum(left, most)
        beyond = batch.num_scheduled[slots] + turns - batch.capacity[slots]
        needed = np.maximum(-(-beyond // worker.info.page_size), 0)
        if needed.sum() * len(worker.groups) <= worker.pool.num_free:
            break
        most //= 2
    short = np.flatnonzero(needed)
    wanting, counts = slots[short].tolist(), needed[short].tolist()
    if worker.groups.plain and counts.count(1) == len(counts):
        pages.add_each(wanting, worker.keys.grow_each(wanting))
        return turns
    for slot, count in zip(wanting, counts, strict=True):
        pages.add(slot, worker.keys.grow(slot, [count] * len(worker.groups)))
    return turns


def _enter(worker: Worker, fresh: list[int], pages: NewPages) -> tuple[NewSequence, ...]:
    """The rows that the worker does not know yet, as new sequences with all their pages."""
    batch = worker.batch
    for slot in fresh:
        pages.add(slot, batch.pages[slot])
        batch.enter(slot)
    return tuple(batch.at(slot).entry(int(batch.num_cached_tokens[slot])) for slot in fresh)


def _message(
    worker: Worker,
    rows: ScheduledRows,
    turns: Ints,
    enter: tuple[NewSequence, ...],
    pages: NewPages,
    moves: PageCopies,
    now: float,
) -> Plan:
    batch, slots, flights = worker.batch, rows.slots, worker.flights
    starts = batch.num_scheduled.take(slots)
    ends = starts + rows.counts
    steps, several = int(turns.max(initial=1)), len(worker.groups) > 1
    batch.num_scheduled[slots] = ends if steps == 1 else ends + turns - 1
    batch.steps += steps
    batch.rows += int(turns.sum()) if steps > 1 else len(slots)
    sampling, scoring, samples = _samples(batch, rows, ends)
    wire, drops = slots.astype("<u4").tobytes(), _drops(batch)
    plan = Plan(
        epoch=worker.epoch,
        step=flights.next_step,
        rows=wire,
        num_computed=starts.astype("<u4").tobytes(),
        num_scheduled=_ONE * len(slots) if rows.decode else rows.counts.astype("<u4").tobytes(),
        samples=samples,
        release=pack(batch.pending_release, "I"),
        new_sequences=enter,
        page_rows=pack(pages.slots, "I"),
        page_counts=pack(pages.counts, "I"),
        pages=pack(pages.numbers, "I"),
        copy_from=pack(moves.sources, "I"),
        copy_to=pack(moves.targets, "I"),
        swap_out=pack(moves.swap_out, "I"),
        swap_in=pack(moves.swap_in, "I"),
        num_steps=steps,
        steps_per_row=turns.astype("<u4").tobytes() if steps > 1 else b"",
        drop_rows=pack(drops.slots, "I"),
        drop_counts=pack(drops.counts, "I"),
        page_groups=bytes(pages.groups) if several else b"",
        drop_groups=bytes(drops.groups) if several else b"",
    )
    first = _record(worker, rows, ends, sampling, scoring, wire, now)
    first.num_swapped = (len(moves.swap_out) + len(moves.swap_in)) // 2
    flights.add([first, *(_again(first, turns, turn) for turn in range(1, steps))])
    batch.pending_release.clear()
    batch.unsent_drops.clear()
    return plan


def _samples(batch: SlotTable, rows: ScheduledRows, ends: Ints) -> tuple[Ints, Ints, bytes]:
    """Slots that sample a token, slots that finish without sampling, and the plan's `samples`
    column."""
    slots = rows.slots
    if rows.decode:
        return slots, slots[:0], b"\x01" * len(slots)
    whole, asked = ends >= batch.num_known[slots], batch.max_output_tokens[slots] > 0
    samples = whole & asked
    if samples.all():
        return slots, slots[:0], b"\x01" * len(slots)
    return slots[samples], slots[whole & ~asked], samples.astype(np.uint8).tobytes()


def _drops(batch: SlotTable) -> DroppedPages:
    """Dropped blocks that the worker does not know yet."""
    rows = sorted(batch.unsent_drops)
    counts = [int(batch.dropped[group, slot]) for slot, group in rows]
    return DroppedPages([slot for slot, _ in rows], [group for _, group in rows], counts)


def _again(first: InFlightStep, turns: Ints, turn: int) -> InFlightStep:
    """The record of a later step of a plan: rows with steps left, one position further."""
    going = turns > turn
    if going.all():
        rows, ends, owners, wire = first.rows, first.ends + turn, first.owners, first.wire
    else:
        rows, ends = first.rows[going], first.ends[going] + turn
        owners = np.zeros_like(first.owners)
        owners[rows] = first.owners[rows]
        wire = rows.astype("<u4").tobytes()
    step, nobody = first.step + turn, first.scoring[:0]
    return InFlightStep(step, first.sent, owners, rows, ends, rows, nobody, wire, len(rows))


def _record(
    worker: Worker,
    rows: ScheduledRows,
    ends: Ints,
    sampling: Ints,
    scoring: Ints,
    wire: bytes,
    now: float,
) -> InFlightStep:
    owners = np.zeros(worker.batch.num_slots, np.int64)
    owners[rows.slots] = worker.batch.lease_id.take(rows.slots)
    num_tokens = len(rows.slots) if rows.decode else int(rows.counts.sum())
    step = worker.flights.next_step
    return InFlightStep(step, now, owners, rows.slots, ends, sampling, scoring, wire, num_tokens)
