"""Prefill budget: how many prompt tokens one step has next to decode rows.

    seconds of a step = a + b * (decode rows + prompt tokens)  <=  most seconds

    most seconds without a setting = the longer of 250 ms and 8 steps of the decode rows alone

A step takes longer with each of its tokens, and every row in it waits for that. With a bound on the
time of a step, prompts get as many tokens as its measured times allow (the token budget of
Sarathi-Serve, OSDI 2024, from the worker's cost model instead of a profile). They get at least a
page, and at least what cannot be split, so no prompt starves. Without a setting a prompt has seven
eighths of such a step or more, so that what a step costs besides its tokens is shared by many.
"""

from __future__ import annotations

from baton_scheduler.workers.cost_model import LinearCostModel
from baton_scheduler.workers.worker import Worker

_SECONDS, _DECODE_STEPS = 0.25, 8
"""Bound without a setting: seconds, and steps of the decode rows alone."""


def prefill_budget(worker: Worker, num_decode: int, most_seconds: float, least: int = 1) -> int:
    """The most tokens of prompts in a step with `num_decode` decode rows.

    Args:
        most_seconds: of a step with decode rows; 0 for the bound without a setting.
        least: the fewest tokens that the next chunk may have. They may take longer than
            `most_seconds`, and never exceed the token budget.
    """
    left = worker.budget - num_decode
    if not num_decode:
        return left
    per_step, per_token = _line(worker.step_cost)
    if not per_token:
        return left
    if not most_seconds:
        most_seconds = max(_SECONDS, _DECODE_STEPS * (per_step + per_token * num_decode))
    allowed = int((most_seconds - per_step) / per_token) - num_decode
    return min(left, max(allowed, least, worker.info.page_size))


def _line(cost: LinearCostModel) -> tuple[float, float]:
    """Seconds per step and per token. Steps of decode rows alone say nothing of a chunk of a
    thousand tokens: behind them all of a step's time counts as that of its tokens, so that the
    first chunk is a short one, and the next ones follow what it took."""
    if cost.varied or not cost.rate:
        return cost.line
    return 0.0, 1 / cost.rate
