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


def plan(worker: Worker, now: float) -> tuple[Plan | None, list[Sequence]]:
    """The worker's next step, and the sequences that had to stop for want of pages.

    None when there is nothing to do. The worker's batch is advanced as if the step had been done,
    and the step is on record in `worker.flights`. A plan without rows lets an idle worker release.
    """
    pages, preempted = _make_room(worker)
    rows = _choose(worker)
    if not len(rows.slots) and (worker.flights or not worker.batch.leaving):
        return None, preempted
    enter = _enter(worker, rows.slots, pages)
    message = _message(worker, rows, enter, pages, now)
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
        chunk = min(left, int(batch.known[slot] - batch.planned[slot]))
        slots.append(slot)
        counts.append(chunk)
        left -= chunk
    batch.backlog -= sum(counts)
    ones = np.ones(len(decode), np.int64)
    return Rows(
        np.concatenate((decode, np.array(slots, np.int64))),
        np.concatenate((ones, np.array(counts, np.int64))),
    )


def _enter(worker: Worker, slots: Ints, pages: Pages) -> tuple[NewSequence, ...]:
    """Announce the rows that the worker has not seen, with all their pages."""
    batch = worker.batch
    fresh = slots[~batch.entered[slots]].tolist()
    pages.slots.extend(fresh)
    pages.pages.extend(batch.pages[slot] for slot in fresh)
    batch.entered[fresh] = True
    return tuple(batch.at(slot).entry(int(batch.hit[slot])) for slot in fresh)


def _message(
    worker: Worker, rows: Rows, enter: tuple[NewSequence, ...], pages: Pages, now: float
) -> Plan:
    batch, slots = worker.batch, rows.slots
    starts = batch.planned[slots]
    ends = starts + rows.counts
    batch.planned[slots] = ends
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
    )
    scoring = slots[(ends >= batch.known[slots]) & (batch.quota[slots] == 0)]
    worker.flights.append(_record(worker, rows, ends, slots[samples], scoring, now))
    worker.next_step += 1
    batch.leaving.clear()
    return plan


def _record(
    worker: Worker, rows: Rows, ends: Ints, sampling: Ints, scoring: Ints, now: float
) -> Flight:
    batch: Batch = worker.batch
    owners = np.zeros(batch.num_slots, np.int64)
    owners[rows.slots] = batch.grant[rows.slots]
    num_tokens = int(rows.counts.sum())
    return Flight(worker.next_step, now, owners, rows.slots, ends, sampling, scoring, num_tokens)
