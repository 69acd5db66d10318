"""What a worker reports becomes log entries, messages for gateways, and ends.

A result is settled through the record of its plan, never through the current slot table:

    row of the result -> grant that ran in that slot at that step -> is it still the slot's grant?
                                                         no: the sequence has left; drop the row
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.errors import WireError
from baton.protocol import Note, PromptLogprobs, Result, Times, Tokens
from baton.vectors import join, split
from baton_scheduler.batch import Batch, Ints
from baton_scheduler.fleet import Flight, Worker
from baton_scheduler.logprobs import check, select
from baton_scheduler.request import Sequence


class Columns(NamedTuple):
    """A result's rows, one sampled token each."""

    slots: Ints
    first: Ints
    tokens: NDArray[np.int32]


@dataclass(slots=True)
class Outcome:
    """What follows from one result. All sequences in it have left the worker."""

    tokens: list[tuple[int, Tokens]] = field(default_factory=list)
    """(gateway, message)"""
    ended: list[Sequence] = field(default_factory=list)
    failed: list[tuple[Sequence, str]] = field(default_factory=list)
    missing: list[Sequence] = field(default_factory=list)
    """Sequences whose token or vector did not come, or came with a gap: they must run again."""
    payers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per token that was sampled, the account of its sequence."""


def columns(result: Result, num_slots: int) -> Columns:
    """Unpack a result. Raises `WireError` for anything that no correct worker sends."""
    try:
        slots = np.frombuffer(result.rows, "<u4").astype(np.int64)
        first = np.frombuffer(result.first, "<u4").astype(np.int64)
        tokens = np.frombuffer(result.tokens, "<i4")
        if result.logprobs is not None:
            check(result.logprobs, len(tokens))
    except ValueError as error:
        raise WireError(f"a column is not whole items: {error}") from error
    if not len(slots) == len(first) == len(tokens) == len(result.counts):
        raise WireError("the columns of a result have different lengths")
    if result.counts.count(1) != len(result.counts):
        raise WireError("a row must carry exactly one token")
    named = [*result.finished, *result.failed, *(p.slot for p in result.prompt_logprobs)]
    if any(slot >= num_slots or slot < 0 for slot in (*named, int(slots.max(initial=0)))):
        raise WireError("a result names a slot that does not exist")
    if len(np.unique(slots)) != len(slots):
        raise WireError("a result names a slot twice")
    return Columns(slots, first, tokens)


def settle(worker: Worker, flight: Flight, result: Result, now: float = 0.0) -> Outcome:
    """Apply one result, which came at `now`, to the worker's batch. A bad one raises `WireError`
    and changes nothing."""
    batch = worker.batch
    slots, first, tokens = columns(result, batch.num_slots)
    vectors = _vectors(result, batch.num_slots)
    out = Outcome()
    current = (flight.owners != 0) & (flight.owners == batch.grant)
    failed = [slot for slot in result.failed if current[slot]]
    current[failed] = False
    kept = np.flatnonzero(current[slots] & (first == batch.generated[slots]))
    slots = slots[kept]
    _append(batch, slots, tokens[kept])
    _begin(batch, slots, now)
    scored = [slot for slot in flight.scoring.tolist() if current[slot]]
    owed = [slot for slot in scored if batch.at(slot).pooling and slot not in vectors]
    vectors = {slot: vectors[slot] for slot in scored if slot in vectors}
    current[owed] = False
    _learn(worker, flight, slots, current)
    reasons = _reasons(batch, flight, slots, current, result)
    reasons |= dict.fromkeys(vectors, "stop")
    out.payers = batch.payer[slots]
    out.tokens = _messages(batch, result, kept, current, reasons, vectors, now)
    out.ended = [worker.evict(slot) for slot in reasons]
    out.failed = [(worker.evict(slot, broken=True), result.failed[slot]) for slot in failed]
    out.missing = _missing(worker, flight, slots) + [worker.evict(slot) for slot in owed]
    return out


def _vectors(result: Result, num_slots: int) -> dict[int, bytes]:
    """The result's vectors by slot. Raises `WireError` as `columns` does."""
    try:
        vectors = split(result.pooled)
    except ValueError as error:
        raise WireError(f"a result cannot be read: {error}") from error
    if any(slot >= num_slots for slot in vectors):
        raise WireError("a vector names a slot that does not exist")
    return vectors


def abandon(worker: Worker, flight: Flight) -> list[Sequence]:
    """Give up a plan whose result is lost or bad: its sequences must run again."""
    return _missing(worker, flight, np.zeros(0, np.int64), everything=True)


def _append(batch: Batch, slots: Ints, tokens: NDArray[np.int32]) -> None:
    batch.generated[slots] += 1
    sequences = batch.sequences
    for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
        sequences[slot].log.append(token)


def _begin(batch: Batch, slots: Ints, now: float) -> None:
    """Note those of the slots that gave their first token since they were taken."""
    for slot in batch.speak(slots):
        batch.at(slot).ledger.token(now)


def _learn(worker: Worker, flight: Flight, settled: Ints, current: NDArray[np.bool_]) -> None:
    """Tell the worker's books which keys are in pages now: not those of rows that owe a token."""
    proven = current.copy()
    proven[flight.sampling] = False
    proven[settled] = True
    rows = proven[flight.rows]
    worker.learn(flight.rows[rows], flight.ends[rows])


def _reasons(
    batch: Batch, flight: Flight, slots: Ints, current: NDArray[np.bool_], result: Result
) -> dict[int, str]:
    """Slots that end now and why. A stop id that is also the last token allowed is a stop."""
    full = slots[batch.generated[slots] >= batch.quota[slots]]
    reasons = dict.fromkeys(full.tolist(), "length")
    reasons |= dict.fromkeys((s for s in flight.scoring.tolist() if current[s]), "length")
    settled = set(slots.tolist()) if result.finished else set()
    return reasons | {slot: why for slot, why in result.finished.items() if slot in settled}


def _messages(
    batch: Batch,
    result: Result,
    kept: Ints,
    current: NDArray[np.bool_],
    reasons: dict[int, str],
    vectors: dict[int, bytes],
    now: float,
) -> list[tuple[int, Tokens]]:
    """One columnar message per gateway that has a row, an end or a score in this step."""
    slots = np.frombuffer(result.rows, "<u4")[kept]
    owner = batch.gateway[slots]
    scores = [p for p in result.prompt_logprobs if current[p.slot]]
    gateways = set(owner.tolist()) | {int(batch.gateway[s]) for s in reasons}
    gateways |= {int(batch.gateway[p.slot]) for p in scores}
    messages = []
    for gateway in sorted(gateways):
        rows = kept if len(gateways) == 1 else kept[owner == gateway]
        ends = {s: why for s, why in reasons.items() if batch.gateway[s] == gateway}
        scored = tuple(_named(batch, p) for p in scores if batch.gateway[p.slot] == gateway)
        pooled = join({int(batch.handle[s]): vectors[s] for s in ends if s in vectors})
        message = _message(batch, result, rows, ends, scored, now)
        if pooled is not None:
            message = msgspec.structs.replace(message, pooled=pooled)
        messages.append((gateway, message))
    return messages


def _named(batch: Batch, scores: PromptLogprobs) -> PromptLogprobs:
    return msgspec.structs.replace(scores, slot=int(batch.handle[scores.slot]))


def _message(
    batch: Batch,
    result: Result,
    rows: Ints,
    ends: dict[int, str],
    scored: tuple[PromptLogprobs, ...],
    now: float,
) -> Tokens:
    whole = len(rows) == len(result.counts)
    logprobs = result.logprobs
    if logprobs is not None and not whole:
        position = np.full(len(result.counts), -1)
        position[rows] = np.arange(len(rows))
        logprobs = select(logprobs, position)
    slots = np.frombuffer(result.rows, "<u4")[rows]
    return Tokens(
        handles=batch.handle[slots].tobytes(),
        first=result.first if whole else np.frombuffer(result.first, "<u4")[rows].tobytes(),
        counts=b"\x01" * len(rows),
        tokens=result.tokens if whole else np.frombuffer(result.tokens, "<i4")[rows].tobytes(),
        finished={int(batch.handle[slot]): why for slot, why in ends.items()},
        logprobs=logprobs,
        prompt_logprobs=scored,
        cached=_cached(batch, slots),
        notes=_notes(batch, slots),
        times=_times(batch, ends, now),
    )


def _times(batch: Batch, ends: dict[int, str], now: float) -> dict[int, Times]:
    """Where the time of sequences went that end."""
    return {
        int(batch.handle[slot]): batch.at(slot).ledger.times(now, *batch.shared(slot))
        for slot in ends
    }


def _cached(batch: Batch, slots: NDArray[np.uint32]) -> dict[int, int]:
    """Prompt tokens that came from the cache, of sequences whose gateway does not know yet."""
    fresh = slots[batch.cached[slots] > 0].tolist()
    for slot in fresh:
        batch.at(slot).cached = 0
    told = {int(batch.handle[slot]): int(batch.cached[slot]) for slot in fresh}
    batch.cached[fresh] = 0
    return told


def _notes(batch: Batch, slots: NDArray[np.uint32]) -> dict[int, Note]:
    """What is told once, of sequences whose gateway hears of them for the first time."""
    fresh = batch.notes.keys() & slots.tolist() if batch.notes else ()
    for slot in fresh:
        batch.at(slot).note = None
    return {int(batch.handle[slot]): batch.notes.pop(slot) for slot in sorted(fresh)}


def _missing(
    worker: Worker, flight: Flight, settled: Ints, everything: bool = False
) -> list[Sequence]:
    """Evict those that ran, are still there, and whose token has not come."""
    owed = flight.owners != 0 if everything else np.zeros(worker.batch.num_slots, bool)
    owed[flight.sampling] = True
    owed[settled] = False
    owed &= flight.owners == worker.batch.grant
    return [worker.evict(slot) for slot in np.flatnonzero(owed).tolist()]
