"""Packs a step into the message to its worker, and records it as in flight."""

from __future__ import annotations

import numpy as np

from baton.protocol import NewSequence, Plan
from baton.protocol.token_columns import pack
from baton_scheduler.planning.columns import DroppedPages, NewPages, PageCopies, ScheduledRows
from baton_scheduler.slot_table import Ints, SlotTable
from baton_scheduler.workers.in_flight import InFlightStep
from baton_scheduler.workers.worker import Worker

_ONE = b"\x01\0\0\0"
"""uint32 column entry of a decode row's token count."""


def plan_message(
    worker: Worker,
    rows: ScheduledRows,
    turns: Ints,
    enter: tuple[NewSequence, ...],
    pages: NewPages,
    moves: PageCopies,
    now: float,
) -> Plan:
    """Advance the worker's batch as if the step had run, record the step as in flight, and return
    its message.

    Args:
        turns: number of steps that each row runs in, at least 1.
        enter: the rows that the worker does not know yet.
    """
    batch, flights = worker.batch, worker.flights
    starts = batch.num_scheduled.take(rows.slots)
    ends, steps = starts + rows.counts, int(turns.max(initial=1))
    _advance(batch, rows, ends, turns, steps)
    sampling, scoring, samples = _samples(batch, rows, ends)
    wire = rows.slots.astype("<u4").tobytes()
    plan = Plan(
        epoch=worker.epoch,
        step=flights.next_step,
        rows=wire,
        num_computed=starts.astype("<u4").tobytes(),
        num_scheduled=_counts(rows),
        samples=samples,
        release=pack(batch.pending_release, "I"),
        new_sequences=enter,
        num_steps=steps,
        steps_per_row=turns.astype("<u4").tobytes() if steps > 1 else b"",
        **_page_columns(worker, pages, moves),
    )
    first = _record(worker, rows, ends, sampling, scoring, wire, now)
    first.num_swapped = (len(moves.swap_out) + len(moves.swap_in)) // 2
    flights.add([first, *(_again(first, turns, turn) for turn in range(1, steps))])
    batch.pending_release.clear()
    batch.unsent_drops.clear()
    return plan


def _advance(batch: SlotTable, rows: ScheduledRows, ends: Ints, turns: Ints, steps: int) -> None:
    batch.num_scheduled[rows.slots] = ends if steps == 1 else ends + turns - 1
    batch.step_counts.add_steps(steps, int(turns.sum()) if steps > 1 else len(rows.slots))


def _counts(rows: ScheduledRows) -> bytes:
    return _ONE * len(rows.slots) if rows.decode else rows.counts.astype("<u4").tobytes()


def _page_columns(worker: Worker, pages: NewPages, moves: PageCopies) -> dict[str, bytes]:
    """The columns of a plan that change pages; groups are named where there are several."""
    drops, several = _drops(worker.batch), len(worker.groups) > 1
    return {
        "page_rows": pack(pages.slots, "I"),
        "page_counts": pack(pages.counts, "I"),
        "pages": pack(pages.numbers, "I"),
        "copy_from": pack(moves.sources, "I"),
        "copy_to": pack(moves.targets, "I"),
        "swap_out": pack(moves.swap_out, "I"),
        "swap_in": pack(moves.swap_in, "I"),
        "drop_rows": pack(drops.slots, "I"),
        "drop_counts": pack(drops.counts, "I"),
        "page_groups": bytes(pages.groups) if several else b"",
        "drop_groups": bytes(drops.groups) if several else b"",
    }


def _samples(batch: SlotTable, rows: ScheduledRows, ends: Ints) -> tuple[Ints, Ints, bytes]:
    """Slots that sample a token, slots that finish without sampling, and the plan's `samples`
    column."""
    slots = rows.slots
    if rows.decode:
        return slots, slots[:0], b"\x01" * len(slots)
    complete, generates = ends >= batch.num_known[slots], batch.max_output_tokens[slots] > 0
    samples = complete & generates
    if samples.all():
        return slots, slots[:0], b"\x01" * len(slots)
    return slots[samples], slots[complete & ~generates], samples.astype(np.uint8).tobytes()


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
    step, no_rows = first.step + turn, first.scoring[:0]
    return InFlightStep(step, first.sent_at, owners, rows, ends, rows, no_rows, wire, len(rows))


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
