"""Applies a worker's results: log entries, messages for gateways, finished sequences.

A result is applied through the record of its step, never through the current slot table:

    row of the result -> lease that ran in that slot at that step -> is it still the slot's lease?
                                                         no: the sequence has left; drop the row
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.errors import WireError
from baton.protocol import PhaseTimes, PromptLogprobs, QueueEstimate, Result, Tokens
from baton.protocol.vector_columns import join, split
from baton_scheduler.logprobs import check, select
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints, SlotTable
from baton_scheduler.workers.in_flight import InFlightStep
from baton_scheduler.workers.worker import Worker


class ResultColumns(NamedTuple):
    """Rows of a result, as on the wire except for the slots."""

    slots: Ints
    first: NDArray[np.uint32]
    counts: NDArray[np.uint8]
    tokens: NDArray[np.int32]
    """Token ids, concatenated."""
    single: bool
    """Every row has one token."""

    @property
    def owners(self) -> Ints:
        """Slot of each token."""
        return self.slots if self.single else np.repeat(self.slots, self.counts)

    @property
    def giving(self) -> Ints:
        """Slots with at least one token."""
        return self.slots if self.single else self.slots[self.counts > 0]

    def take(
        self, kept: NDArray[np.bool_], most: NDArray[np.integer]
    ) -> tuple[ResultColumns, Ints | None]:
        """The `kept` rows, with at most `most` tokens each, and the former indices of their tokens;
        None as indices if all are kept."""
        if kept.all() and (self.counts <= most).all():
            return self, None
        rows, before = np.flatnonzero(kept), self.counts.astype(np.int64)
        counts = np.minimum(before, most)[rows]
        starts, begins = (np.cumsum(before) - before)[rows], np.cumsum(counts) - counts
        index = np.arange(counts.sum()) + np.repeat(starts - begins, counts)
        tokens, single = self.tokens[index], bool((counts == 1).all())
        some = ResultColumns(
            self.slots[rows], self.first[rows], counts.astype("u1"), tokens, single
        )
        return some, index


@dataclass(slots=True)
class StepOutcome:
    """Consequences of one result. Its sequences have left the worker."""

    tokens: list[tuple[int, Tokens]] = field(default_factory=list)
    """(gateway, message)"""
    ended: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, str]] = field(default_factory=list)
    missing: list[Sequence] = field(default_factory=list)
    """Sequences whose token or vector is missing or came with a gap; they must run again."""
    tenants: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Tenant number of each sampled token."""


def columns(result: Result, num_slots: int, flight: InFlightStep | None = None) -> ResultColumns:
    """Unpack a result. Raises `WireError` for anything that no correct worker sends.

    Rows equal to those of the in-flight step, the usual case, need no further checks.
    """
    same = flight is not None and result.rows == flight.wire
    try:
        slots = flight.rows if flight and same else _slots(result.rows, num_slots)
        first = np.frombuffer(result.first, "<u4")
        counts = np.frombuffer(result.counts, np.uint8)
        tokens = np.frombuffer(result.tokens, "<i4")
        if result.logprobs is not None:
            check(result.logprobs, len(tokens))
    except ValueError as error:
        raise WireError(f"a column is not whole items: {error}") from error
    single = result.counts.count(1) == len(counts)
    number = len(counts) if single else int(counts.sum())
    if not len(slots) == len(first) == len(counts) or number != len(tokens):
        raise WireError("the columns of a result have different lengths")
    named = [*result.finished, *result.failed, *(p.slot for p in result.prompt_logprobs)]
    if any(not 0 <= slot < num_slots for slot in named):
        raise WireError("a result names a slot that does not exist")
    return ResultColumns(slots, first, counts, tokens, single)


def _slots(column: bytes, num_slots: int) -> Ints:
    slots = np.frombuffer(column, "<u4").astype(np.int64)
    if slots.max(initial=0) >= num_slots:
        raise WireError("a result names a slot that does not exist")
    if np.bincount(slots, minlength=1).max() > 1:
        raise WireError("a result names a slot twice")
    return slots


def apply_result(
    worker: Worker, flight: InFlightStep, result: Result, now: float = 0.0
) -> StepOutcome:
    """Apply a result, received at `now`, to the worker's batch. An invalid result raises
    `WireError` and changes nothing."""
    batch = worker.batch
    rows = columns(result, batch.num_slots, flight)
    vectors = _vectors(result, batch.num_slots)
    out = StepOutcome()
    current = (flight.owners != 0) & (flight.owners == batch.lease_id)
    failed = [slot for slot in result.failed if current[slot]]
    for slot in failed:
        current[slot] = False
    here, generated = current.take(rows.slots), batch.generated.take(rows.slots)
    if not rows.single and ((rows.counts != 1) & here & ~batch.variable_tokens[rows.slots]).any():
        raise WireError("a row that follows no grammar must carry exactly one token")
    left = batch.max_output_tokens.take(rows.slots) - generated
    rows, index = rows.take(here & (rows.first == generated), left)
    settled, slots = rows.slots, rows.giving
    _append(batch, rows)
    _leap(worker, flight, rows)
    _begin(worker, slots, now)
    scored = [slot for slot in flight.scoring.tolist() if current[slot]]
    owed = [slot for slot in scored if batch.at(slot).pooling and slot not in vectors]
    vectors = {slot: vectors[slot] for slot in scored if slot in vectors}
    for slot in owed:
        current[slot] = False
    whole = _whole(flight, slots)
    _learn(worker, flight, slots, current, whole)
    reasons = _reasons(batch, flight, slots, current, result)
    reasons |= dict.fromkeys(vectors, "stop")
    out.tenants = batch.tenant_number.take(rows.owners)
    out.tokens = _messages(batch, result, rows, index, current, reasons, vectors, now)
    out.ended = [worker.evict(slot) for slot in reasons]
    out.failed = [(worker.evict(slot, broken=True), result.failed[slot]) for slot in failed]
    out.missing = [] if whole else _missing(worker, flight, settled)
    out.missing += [worker.evict(slot) for slot in owed]
    return out


def _vectors(result: Result, num_slots: int) -> dict[int, bytes]:
    """Slot -> pooled vector. Raises `WireError` as `columns` does."""
    try:
        vectors = split(result.pooled)
    except ValueError as error:
        raise WireError(f"a result cannot be read: {error}") from error
    if any(slot >= num_slots for slot in vectors):
        raise WireError("a vector names a slot that does not exist")
    return vectors


def abort_step(worker: Worker, flight: InFlightStep) -> list[Sequence]:
    """Discard a step whose result is lost or invalid; returns its sequences, which must run
    again."""
    return _missing(worker, flight, np.zeros(0, np.int64), everything=True)


def _whole(flight: InFlightStep, settled: Ints) -> bool:
    """True if every row of the step samples, and the result has the same rows in the same order."""
    rows = flight.rows
    return rows is flight.sampling and len(rows) == len(settled) and bool((rows == settled).all())


def _append(batch: SlotTable, rows: ResultColumns) -> None:
    batch.generated[rows.slots] += rows.counts
    sequences = batch.sequences
    for slot, token in zip(rows.owners.tolist(), rows.tokens.tolist(), strict=True):
        sequences[slot].log.append(token)


def _leap(worker: Worker, flight: InFlightStep, rows: ResultColumns) -> None:
    """Update the positions of rows with more tokens than one, or none; the latter wait for a
    page."""
    if not worker.batch.num_variable_tokens:
        return
    leaping = worker.batch.variable_tokens[rows.slots]
    if leaping.any():
        worker.recount(rows.slots[leaping])
        worker.flights.wasteful |= bool((rows.counts == 0).any())
        flight.num_tokens += len(rows.tokens) - len(rows.slots)


def _begin(worker: Worker, slots: Ints, now: float) -> None:
    """Mark those of the slots that got their first token since they were placed."""
    for slot in worker.batch.speak(slots):
        sequence = worker.batch.at(slot)
        if sequence.fresh:
            worker.pulse.first_token(now - sequence.since)
        sequence.phase_timer.token(now)


def _learn(
    worker: Worker, flight: InFlightStep, settled: Ints, current: NDArray[np.bool_], whole: bool
) -> None:
    """Record the tokens whose KV is now in pages, except for rows whose token is missing."""
    if whole:
        worker.keys.learn(settled, worker.batch.written(settled))
        return
    proven = current.copy()
    proven[flight.sampling] = False
    proven[settled] = True
    ends = np.zeros_like(worker.batch.generated)
    ends[flight.rows] = flight.ends
    ends[settled] = worker.batch.written(settled)
    rows = flight.rows[proven[flight.rows]]
    worker.keys.learn(rows, ends[rows])


def _reasons(
    batch: SlotTable, flight: InFlightStep, slots: Ints, current: NDArray[np.bool_], result: Result
) -> dict[int, str]:
    """Slot -> finish reason. A stop id that is also the last allowed token counts as a stop."""
    full = slots[batch.generated.take(slots) >= batch.max_output_tokens.take(slots)]
    reasons = dict.fromkeys(full.tolist(), "length")
    reasons |= dict.fromkeys((s for s in flight.scoring.tolist() if current[s]), "length")
    settled = set(slots.tolist()) if result.finished else set()
    return reasons | {slot: why for slot, why in result.finished.items() if slot in settled}


def _messages(
    batch: SlotTable,
    result: Result,
    rows: ResultColumns,
    index: Ints | None,
    current: NDArray[np.bool_],
    reasons: dict[int, str],
    vectors: dict[int, bytes],
    now: float,
) -> list[tuple[int, Tokens]]:
    """One `Tokens` message per gateway with a row, an end or a score in this step."""
    scores = [p for p in result.prompt_logprobs if current[p.slot]]
    gateways = _owners(batch, rows)
    gateways |= {int(batch.gateway[slot]) for slot in (*reasons, *(p.slot for p in scores))}
    messages = []
    for gateway in sorted(gateways):
        mine, at = _of(batch, rows, index, gateway)
        ends = {s: why for s, why in reasons.items() if batch.gateway[s] == gateway}
        scored = tuple(_named(batch, p) for p in scores if batch.gateway[p.slot] == gateway)
        pooled = join({int(batch.handle[s]): vectors[s] for s in ends if s in vectors})
        message = _message(batch, result, mine, at, ends, scored, now)
        if pooled is not None:
            message = msgspec.structs.replace(message, pooled=pooled)
        messages.append((gateway, message))
    return messages


def _owners(batch: SlotTable, rows: ResultColumns) -> set[int]:
    """Gateways that receive a token."""
    if len(batch.gateways) == 1:
        return set(batch.gateways) if len(rows.tokens) else set()
    return set(np.flatnonzero(np.bincount(batch.gateway.take(rows.giving))).tolist())


def _of(
    batch: SlotTable, rows: ResultColumns, index: Ints | None, gateway: int
) -> tuple[ResultColumns, Ints | None]:
    """Rows with a token for a gateway, out of rows whose tokens are at `index`, and their
    indices."""
    if rows.single and len(batch.gateways) == 1:
        return rows, index
    mine = (batch.gateway.take(rows.slots) == gateway) & (rows.counts > 0)
    some, at = rows.take(mine, rows.counts)
    return some, index if at is None else at if index is None else index[at]


def _named(batch: SlotTable, scores: PromptLogprobs) -> PromptLogprobs:
    return msgspec.structs.replace(scores, slot=int(batch.handle[scores.slot]))


def _message(
    batch: SlotTable,
    result: Result,
    rows: ResultColumns,
    index: Ints | None,
    ends: dict[int, str],
    scored: tuple[PromptLogprobs, ...],
    now: float,
) -> Tokens:
    logprobs, sampled = result.logprobs, len(result.tokens) // 4
    if logprobs is not None and index is not None and len(index) < sampled:
        position = np.full(sampled, -1)
        position[index] = np.arange(len(index))
        logprobs = select(logprobs, position)
    return Tokens(
        handles=batch.handle.take(rows.slots).tobytes(),
        first=rows.first.tobytes(),
        counts=rows.counts.tobytes(),
        tokens=rows.tokens.tobytes(),
        finished={int(batch.handle[slot]): why for slot, why in ends.items()},
        logprobs=logprobs,
        prompt_logprobs=scored,
        cached=_cached(batch, rows.slots),
        estimates=_notes(batch, rows.slots),
        phase_times=_times(batch, ends, now),
    )


def _times(batch: SlotTable, ends: dict[int, str], now: float) -> dict[int, PhaseTimes]:
    """Phase times of the sequences that end."""
    return {
        int(batch.handle[slot]): batch.at(slot).phase_timer.times(now, *batch.shared(slot))
        for slot in ends
    }


def _cached(batch: SlotTable, slots: Ints) -> dict[int, int]:
    """Cached prompt tokens of sequences, where not yet reported to the gateway."""
    if not batch.unreported:
        return {}
    fresh = [slot for slot in slots.tolist() if slot in batch.unreported]
    for slot in fresh:
        batch.at(slot).cached = 0
    told = {int(batch.handle[slot]): int(batch.unreported_cached_tokens[slot]) for slot in fresh}
    batch.unreported_cached_tokens[fresh] = 0
    batch.unreported.difference_update(fresh)
    return told


def _notes(batch: SlotTable, slots: Ints) -> dict[int, QueueEstimate]:
    """Queue estimates of sequences, where not yet reported to the gateway."""
    fresh = batch.unsent_estimates.keys() & slots.tolist() if batch.unsent_estimates else ()
    for slot in fresh:
        batch.at(slot).estimate = None
    return {int(batch.handle[slot]): batch.unsent_estimates.pop(slot) for slot in sorted(fresh)}


def _missing(
    worker: Worker, flight: InFlightStep, settled: Ints, everything: bool = False
) -> list[Sequence]:
    """Evict sequences that ran, are still on the worker, and have no token in the result."""
    owed = flight.owners != 0 if everything else np.zeros(worker.batch.num_slots, bool)
    owed[flight.sampling] = True
    owed[settled] = False
    owed &= flight.owners == worker.batch.lease_id
    return [worker.evict(slot) for slot in np.flatnonzero(owed).tolist()]
