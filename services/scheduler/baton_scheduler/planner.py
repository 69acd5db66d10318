"""One plan for one worker: every decode row, then prompts in chunks, under a token budget.

The batch is continuous (Orca, OSDI 2022): rows join and leave at every step. Pages come one at
a time (vLLM, SOSP 2023) and prompts in chunks that share the step with decode rows (Sarathi-Serve,
OSDI 2024). Plans go out ahead of results: a row counts as advanced as soon as it is planned, so
the next plan lets it run again, one position further, and no half of the batch ever waits for the
other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from baton.protocol import NewSequence, Plan
from baton_scheduler.batch import Batch, Ints
from baton_scheduler.fleet import Flight, Worker
from baton_scheduler.request import Sequence


class Rows(NamedTuple):
    """What runs in a step: slots and how many tokens of each, decode rows first."""

    slots: Ints
    counts: Ints


class Pages(NamedTuple):
    """Page numbers to append, per slot that gets any."""

    slots: list[int]
    pages: list[list[int]]


class Moves(NamedTuple):
    """Pages whose content goes elsewhere before the rows run."""

    swap_out: list[int]
    """(page, host page), (page, host page), ..."""
    swap_in: list[int]
    """(host page, page), ..."""
    sources: list[int]
    targets: list[int]
    """Pairwise with the sources."""


def plan(worker: Worker, now: float, most: int = 1) -> tuple[Plan | None, list[Sequence]]:
    """The worker's next step, and the sequences that had to stop for want of pages.

    None when there is nothing to do. The worker's batch is advanced as if the step had been done,
    and the step is on record in `worker.flights`. A plan without rows lets an idle worker release.
    Where every row decodes, it is the plan of up to `most` steps, each with a record of its own.
    """
    worker.shed()
    pages, preempted = _make_room(worker)
    rows = _choose(worker)
    if not len(rows.slots) and (worker.flights or not worker.batch.leaving):
        return None, preempted
    turns = _repeat(worker, rows, pages, most)
    # From here on no page is taken for this plan: all that had to make room is known.
    fresh = rows.slots[~worker.batch.entered[rows.slots]].tolist()
    moves = Moves(*worker.swaps_for(fresh), *worker.copies(fresh))
    enter = _enter(worker, fresh, pages)
    message = _message(worker, rows, turns, enter, pages, moves, now)
    return message, preempted


def _make_room(worker: Worker) -> tuple[Pages, list[Sequence]]:
    """A page for every decode row that has filled its last one.

    When pages run out, the last in the order of service gives up its own: the first is never
    stopped by a later one, so it always gets to its end.
    """
    batch = worker.batch
    decode = batch.decoding()
    short = decode[batch.planned[decode] >= batch.capacity[decode]].tolist()
    grown, preempted = Pages([], []), []
    for slot in sorted(short, key=lambda slot: batch.at(slot).key):
        while batch.grant[slot] and not worker.pool.num_free:
            preempted.append(worker.evict(batch.last()))
        if batch.grant[slot]:
            grown.slots.append(slot)
            grown.pages.append(worker.grow(slot))
    return grown, preempted


def _choose(worker: Worker) -> Rows:
    """All decode rows, then chunks of prompts in the order of service while the budget lasts."""
    batch = worker.batch
    decode = batch.decoding()
    left = worker.budget - len(decode)
    slots, counts = [], []
    for slot in batch.prefilling():
        if left <= 0:
            break
        rest = int(batch.known[slot] - batch.planned[slot])
        if rest > left and batch.at(slot).whole:
            break  # It is the first of the next steps, which have room for it.
        chunk = min(left, rest)
        slots.append(slot)
        counts.append(chunk)
        left -= chunk
    batch.backlog -= sum(counts)
    ones = np.ones(len(decode), np.int64)
    return Rows(
        np.concatenate((decode, np.array(slots, np.int64))),
        np.concatenate((ones, np.array(counts, np.int64))),
    )


def _repeat(worker: Worker, rows: Rows, pages: Pages, most: int) -> Ints:
    """In how many steps each row runs: once, or as often as its limit and free pages allow."""
    batch, slots = worker.batch, rows.slots
    decoding = batch.planned[slots] >= batch.known[slots]
    if most == 1 or batch.backlog or not len(slots) or not decoding.all():
        return np.ones(len(slots), np.int64)
    left = batch.limit[slots] - batch.planned[slots]
    while True:
        turns: Ints = np.minimum(left, most)
        beyond = batch.planned[slots] + turns - batch.capacity[slots]
        needed = np.maximum(-(-beyond // worker.info.page_size), 0)
        if needed.sum() <= worker.pool.num_free:
            break
        most //= 2
    for slot, count in zip(slots[needed > 0].tolist(), needed[needed > 0].tolist(), strict=True):
        pages.slots.append(slot)
        pages.pages.append(worker.grow(slot, count))
    return turns


def _enter(worker: Worker, fresh: list[int], pages: Pages) -> tuple[NewSequence, ...]:
    """Announce the rows that the worker has not seen, with all their pages."""
    batch = worker.batch
    pages.slots.extend(fresh)
    pages.pages.extend(batch.pages[slot] for slot in fresh)
    batch.entered[fresh] = True
    return tuple(batch.at(slot).entry(int(batch.hit[slot])) for slot in fresh)


def _message(
    worker: Worker,
    rows: Rows,
    turns: Ints,
    enter: tuple[NewSequence, ...],
    pages: Pages,
    moves: Moves,
    now: float,
) -> Plan:
    batch, slots = worker.batch, rows.slots
    starts = batch.planned[slots]
    ends = starts + rows.counts
    steps, dropping = int(turns.max(initial=1)), sorted(batch.dropping)
    batch.planned[slots] = ends + turns - 1
    batch.steps += steps
    batch.rows += int(turns.sum()) if steps > 1 else len(slots)
    samples = (ends >= batch.known[slots]) & (batch.quota[slots] > 0)
    plan = Plan(
        epoch=worker.epoch,
        step=worker.next_step,
        rows=slots.astype("<u4").tobytes(),
        starts=starts.astype("<u4").tobytes(),
        counts=rows.counts.astype("<u4").tobytes(),
        samples=samples.astype(np.uint8).tobytes(),
        release=np.array(batch.leaving, "<u4").tobytes(),
        enter=enter,
        page_rows=np.array(pages.slots, "<u4").tobytes(),
        page_counts=np.array([len(p) for p in pages.pages], "<u4").tobytes(),
        pages=np.array([page for p in pages.pages for page in p], "<u4").tobytes(),
        copy_from=np.array(moves.sources, "<u4").tobytes(),
        copy_to=np.array(moves.targets, "<u4").tobytes(),
        swap_out=np.array(moves.swap_out, "<u4").tobytes(),
        swap_in=np.array(moves.swap_in, "<u4").tobytes(),
        steps=steps,
        turns=turns.astype("<u4").tobytes() if steps > 1 else b"",
        drop_rows=np.array(dropping, "<u4").tobytes(),
        drop_counts=batch.dropped[dropping].astype("<u4").tobytes(),
    )
    scoring = slots[(ends >= batch.known[slots]) & (batch.quota[slots] == 0)]
    first = _record(worker, rows, ends, slots[samples], scoring, now)
    first.num_swapped = (len(moves.swap_out) + len(moves.swap_in)) // 2
    worker.flights.append(first)
    worker.flights.extend(_again(first, turns, turn) for turn in range(1, steps))
    worker.first_step = worker.next_step
    worker.next_step += steps
    worker.cut = worker.wasteful = False
    batch.leaving.clear()
    batch.dropping.clear()
    return plan


def _again(first: Flight, turns: Ints, turn: int) -> Flight:
    """The record of a later step of a plan: rows that have turns left, one position further."""
    going = turns > turn
    if going.all():
        rows, ends, owners = first.rows, first.ends + turn, first.owners
    else:
        rows, ends = first.rows[going], first.ends[going] + turn
        owners = np.zeros_like(first.owners)
        owners[rows] = first.owners[rows]
    step, nobody = first.step + turn, first.scoring[:0]
    return Flight(step, first.sent, owners, rows, ends, rows, nobody, len(rows))


def _record(
    worker: Worker, rows: Rows, ends: Ints, sampling: Ints, scoring: Ints, now: float
) -> Flight:
    batch: Batch = worker.batch
    owners = np.zeros(batch.num_slots, np.int64)
    owners[rows.slots] = batch.grant[rows.slots]
    num_tokens = int(rows.counts.sum())
    return Flight(worker.next_step, now, owners, rows.slots, ends, sampling, scoring, num_tokens)
