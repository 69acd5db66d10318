"""Estimates the time of a request from the scheduler's report of its queue and workers."""

from __future__ import annotations

import msgspec

from baton.protocol import Stats, WorkerStats

_DECODES = frozenset({"decode", "both"})


class TimeEstimate(msgspec.Struct, frozen=True):
    """Milliseconds of the phases of one request; None before any measurement."""

    queue_position: int
    """Sequences that wait now, of any model."""
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None

    @property
    def total_ms(self) -> float | None:
        """Sum of all phases."""
        if self.queue_ms is None or self.prefill_ms is None or self.decode_ms is None:
            return None
        return self.queue_ms + self.prefill_ms + self.decode_ms


def estimate(stats: Stats | None, model: str, prompt_tokens: int, max_tokens: int) -> TimeEstimate:
    """Estimate a request that arrives now, assuming that none of its prompt is cached.

    Args:
        stats: the scheduler's last report; None without one.
        prompt_tokens: of all prompts together.
        max_tokens: of the longest choice, including its first token, which the prefill computes.
    """
    if stats is None:
        return TimeEstimate(0)
    runs = [w for w in stats.workers if w.role != "encode"]
    able = [w for w in runs if w.state == "ready" and w.model == model]
    measured = [w for w in able if w.seconds_per_step or w.seconds_per_token]
    if not measured:
        return TimeEstimate(stats.waiting)
    queue = stats.waiting_tokens / len(measured) * min(w.seconds_per_token for w in measured)
    prefill = min(_steps(w, prompt_tokens) for w in measured)
    decode = max(0, max_tokens - 1) * min(_token(w, stats) for w in measured)
    return TimeEstimate(stats.waiting, *(round(1000 * s, 3) for s in (queue, prefill, decode)))


def _steps(worker: WorkerStats, tokens: int) -> float:
    """Seconds to compute `tokens` tokens next to the sequences that decode there."""
    room = max(1, worker.tokens_per_step - worker.running)
    steps = -(-tokens // room)
    tokens += steps * worker.running
    return steps * worker.seconds_per_step + tokens * worker.seconds_per_token


def _token(worker: WorkerStats, stats: Stats) -> float:
    """Seconds from token to token: measured, or else those of a step with one more sequence."""
    roles = [r for r in stats.roles if r.role in _DECODES and r.itl_seconds]
    modelled = worker.seconds_per_step + (worker.running + 1) * worker.seconds_per_token
    return max(modelled, min(r.itl_seconds for r in roles)) if roles else modelled
