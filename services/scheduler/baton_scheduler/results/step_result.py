"""Applies a worker's results: log entries, messages for gateways, finished sequences.

A result is applied through the record of its step, never through the current slot table:

    row of the result -> lease that ran in that slot at that step -> is it still the slot's lease?
                                                         no: the sequence has left; drop the row
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from baton.errors import WireError
from baton.protocol import Result, Tokens
from baton_scheduler.results.result_columns import (
    ResultColumns,
    columns,
    pooled_vectors,
    slot_set,
)
from baton_scheduler.results.token_messages import token_messages
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints, SlotTable
from baton_scheduler.workers.in_flight import InFlightStep
from baton_scheduler.workers.worker import Worker


@dataclass(slots=True)
class StepOutcome:
    """Consequences of one result. Its sequences have left the worker."""

    tokens: list[tuple[int, Tokens]] = field(default_factory=list)
    """(gateway, message)"""
    ended: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, str]] = field(default_factory=list)
    invalid: list[tuple[Sequence, str]] = field(default_factory=list)
    """Sequences that failed because of their media."""
    unfollowable: list[tuple[Sequence, str]] = field(default_factory=list)
    """Sequences that failed because of their grammars."""
    missing: list[Sequence] = field(default_factory=list)
    """Sequences whose token or vector is missing or came with a gap; they must run again."""
    tenants: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tenant number of each sampled token."""
    drafted: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Verified draft tokens, per row with any."""
    accepted: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Accepted draft tokens, per row with any."""


def apply_result(
    worker: Worker, flight: InFlightStep, result: Result, now: float = 0.0
) -> StepOutcome:
    """Apply a result, received at `now`, to the worker's batch. An invalid result raises
    `WireError` and changes nothing."""
    batch = worker.batch
    rows = columns(result, batch.num_slots, flight)
    vectors = pooled_vectors(result, batch.num_slots)
    current = (flight.owners != 0) & (flight.owners == batch.lease_id)
    failed = [slot for slot in result.failed if current[slot]]
    for slot in failed:
        current[slot] = False
    drafted, accepted = _count_drafts(batch, result, rows, current)
    rows, index = _accepted(batch, rows, current)
    slots = rows.with_tokens
    _append(batch, rows)
    _update_positions(worker, flight, rows)
    _begin(worker, slots, now)
    vectors, without_vector = _scored(batch, flight, current, vectors)
    for slot in without_vector:
        current[slot] = False
    complete = _is_complete(flight, slots)
    _confirm(worker, flight, slots, current, complete)
    reasons = _reasons(batch, flight, slots, current, result) | dict.fromkeys(vectors, "stop")
    outcome = StepOutcome(
        drafted=drafted,
        accepted=accepted,
        tenants=batch.tenant_number.take(rows.owners),
        tokens=token_messages(batch, result, rows, index, current, reasons, vectors, now),
        ended=[worker.evict(slot) for slot in reasons],
    )
    _evict_failed(worker, result, failed, outcome)
    if not complete:
        outcome.missing += _missing(worker, flight, rows.slots)
    outcome.missing += [worker.evict(slot) for slot in without_vector]
    return outcome


def _evict_failed(worker: Worker, result: Result, failed: list[int], outcome: StepOutcome) -> None:
    """Evict failed sequences, by what is at fault; their pages leave the prefix cache."""
    invalid, unfollowable = slot_set(result.invalid), slot_set(result.unfollowable)
    innocent = [slot for slot in failed if slot not in invalid | unfollowable]
    of_media = [slot for slot in failed if slot in invalid]
    of_grammar = [slot for slot in failed if slot in unfollowable - invalid]
    for slots, evicted in (
        (innocent, outcome.failed),
        (of_media, outcome.invalid),
        (of_grammar, outcome.unfollowable),
    ):
        evicted += [(worker.evict(slot, broken=True), result.failed[slot]) for slot in slots]


def _count_drafts(
    batch: SlotTable, result: Result, rows: ResultColumns, current: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Count the drafts of current rows. Returns the verified and accepted numbers of each row with
    any."""
    if not result.drafted:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    drafted = np.frombuffer(result.drafted, np.uint8).astype(np.int64)
    accepted = np.frombuffer(result.accepted, np.uint8).astype(np.int64)
    mask = current.take(rows.slots) & (drafted > 0)
    slots, drafted, accepted = rows.slots[mask], drafted[mask], accepted[mask]
    batch.step_counts.add_drafts(slots, drafted, accepted)
    return drafted, accepted


def _accepted(
    batch: SlotTable, rows: ResultColumns, current: NDArray[np.bool_]
) -> tuple[ResultColumns, Ints | None]:
    """The rows that continue their logs, up to the last requested token. Raises `WireError` for a
    row with more or fewer tokens than a step can yield."""
    is_current, generated = current.take(rows.slots), batch.generated.take(rows.slots)
    if (
        not rows.single
        and ((rows.counts != 1) & is_current & ~batch.variable_tokens[rows.slots]).any()
    ):
        raise WireError("a row without grammar and drafts must carry exactly one token")
    left = batch.max_output_tokens.take(rows.slots) - generated
    return rows.take(is_current & (rows.first == generated), left)


def _scored(
    batch: SlotTable, flight: InFlightStep, current: NDArray[np.bool_], vectors: dict[int, bytes]
) -> tuple[dict[int, bytes], list[int]]:
    """The vectors of the step's texts, and the slots whose vector is missing."""
    if not len(flight.scoring):
        return {}, []
    scored = [slot for slot in flight.scoring.tolist() if current[slot]]
    missing = [slot for slot in scored if batch.at(slot).pooling and slot not in vectors]
    return {slot: vectors[slot] for slot in scored if slot in vectors}, missing


def abort_step(worker: Worker, flight: InFlightStep) -> list[Sequence]:
    """Discard a step whose result is lost or invalid; returns its sequences, which must run
    again."""
    return _missing(worker, flight, np.zeros(0, np.int64), all_rows=True)


def _is_complete(flight: InFlightStep, sampled: Ints) -> bool:
    """True if every row of the step samples, and the result has the same rows in the same order."""
    rows = flight.rows
    return rows is flight.sampling and len(rows) == len(sampled) and bool((rows == sampled).all())


def _append(batch: SlotTable, rows: ResultColumns) -> None:
    batch.generated[rows.slots] += rows.counts
    sequences = batch.sequences
    for slot, token in zip(rows.owners.tolist(), rows.tokens.tolist(), strict=True):
        sequences[slot].log.append(token)


def _update_positions(worker: Worker, flight: InFlightStep, rows: ResultColumns) -> None:
    """Update the positions of rows with several tokens or none; the latter wait for a page."""
    if not worker.batch.num_variable_tokens:
        return
    leaping = worker.batch.variable_tokens[rows.slots]
    if leaping.any():
        worker.recount(rows.slots[leaping])
        worker.flights.wasteful |= bool((rows.counts == 0).any())
        flight.num_tokens += len(rows.tokens) - len(rows.slots)


def _begin(worker: Worker, slots: Ints, now: float) -> None:
    """Mark the slots that got their first token since they were placed."""
    for slot in worker.batch.take_first_tokens(slots):
        sequence = worker.batch.at(slot)
        if sequence.never_sampled:
            worker.latency.first_token(now - sequence.arrival_time)
        sequence.phase_timer.token(now)


def _confirm(
    worker: Worker, flight: InFlightStep, sampled: Ints, current: NDArray[np.bool_], complete: bool
) -> None:
    """Record the tokens whose KV is now in pages, except for rows whose token is missing."""
    if complete:
        worker.kv.confirm(sampled, worker.batch.written(sampled))
        return
    proven = current.copy()
    proven[flight.sampling] = False
    proven[sampled] = True
    ends = np.zeros_like(worker.batch.generated)
    ends[flight.rows] = flight.ends
    ends[sampled] = worker.batch.written(sampled)
    rows = flight.rows[proven[flight.rows]]
    worker.kv.confirm(rows, ends[rows])


def _reasons(
    batch: SlotTable, flight: InFlightStep, slots: Ints, current: NDArray[np.bool_], result: Result
) -> dict[int, str]:
    """Slot -> finish reason. A stop id that is also the last allowed token counts as a stop."""
    full = slots[batch.generated.take(slots) >= batch.max_output_tokens.take(slots)]
    reasons = dict.fromkeys(full.tolist(), "length")
    reasons |= dict.fromkeys((s for s in flight.scoring.tolist() if current[s]), "length")
    sampled = set(slots.tolist()) if result.finished else set()
    return reasons | {slot: why for slot, why in result.finished.items() if slot in sampled}


def _missing(
    worker: Worker, flight: InFlightStep, sampled: Ints, all_rows: bool = False
) -> list[Sequence]:
    """Evict sequences that ran, are still on the worker, and have no token in the result."""
    missing = flight.owners != 0 if all_rows else np.zeros(worker.batch.num_slots, bool)
    missing[flight.sampling] = True
    missing[sampled] = False
    missing &= flight.owners == worker.batch.lease_id
    return [worker.evict(slot) for slot in np.flatnonzero(missing).tolist()]
