"""Messages to gateways: the tokens, ends and scores of one step, one message per gateway."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.protocol import PhaseTimes, PromptLogprobs, QueueEstimate, Result, Tokens
from baton.protocol.vector_columns import join
from baton_scheduler.logprobs import select
from baton_scheduler.results.result_columns import ResultColumns
from baton_scheduler.slot_table import Ints, SlotTable


def token_messages(
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
        scored = tuple(_with_handle(batch, p) for p in scores if batch.gateway[p.slot] == gateway)
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
    return set(np.flatnonzero(np.bincount(batch.gateway.take(rows.with_tokens))).tolist())


def _of(
    batch: SlotTable, rows: ResultColumns, index: Ints | None, gateway: int
) -> tuple[ResultColumns, Ints | None]:
    """Rows with a token for a gateway, out of rows whose tokens are at `index`, and their
    indices."""
    if rows.single and len(batch.gateways) == 1:
        return rows, index
    mine = (batch.gateway.take(rows.slots) == gateway) & (rows.counts > 0)
    kept, at = rows.take(mine, rows.counts)
    return kept, index if at is None else at if index is None else index[at]


def _with_handle(batch: SlotTable, scores: PromptLogprobs) -> PromptLogprobs:
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
        int(batch.handle[slot]): batch.at(slot).phase_timer.times(
            now, *batch.step_counts.steps(slot), *batch.step_counts.drafts(slot)
        )
        for slot in ends
    }


def _cached(batch: SlotTable, slots: Ints) -> dict[int, int]:
    """Cached prompt tokens of sequences, where not yet reported to the gateway."""
    if not batch.unreported:
        return {}
    fresh = [slot for slot in slots.tolist() if slot in batch.unreported]
    for slot in fresh:
        batch.at(slot).cached = 0
    cached_tokens = {
        int(batch.handle[slot]): int(batch.unreported_cached_tokens[slot]) for slot in fresh
    }
    batch.unreported_cached_tokens[fresh] = 0
    batch.unreported.difference_update(fresh)
    return cached_tokens


def _notes(batch: SlotTable, slots: Ints) -> dict[int, QueueEstimate]:
    """Queue estimates of sequences, where not yet reported to the gateway."""
    fresh = batch.unsent_estimates.keys() & slots.tolist() if batch.unsent_estimates else ()
    for slot in fresh:
        batch.at(slot).estimate = None
    return {int(batch.handle[slot]): batch.unsent_estimates.pop(slot) for slot in sorted(fresh)}
