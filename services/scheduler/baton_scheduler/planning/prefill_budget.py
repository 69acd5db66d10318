"""Prefill budget: how many prompt tokens one step has next to decode rows.

    seconds of a step = a + b * (decode rows + prompt tokens)  <=  most seconds

A step takes longer with each of its tokens, and every row in it waits for that. With a bound on the
time of a step, prompts get as many tokens as its measured times allow (the token budget of
Sarathi-Serve, OSDI 2024, from the worker's cost model instead of a profile). They get at least a
page, and at least what cannot be split, so no prompt starves.
"""

from __future__ import annotations

from baton_scheduler.workers.worker import Worker


def prefill_budget(worker: Worker, num_decode: int, most_seconds: float, least: int = 1) -> int:
    """The most tokens of prompts in a step with `num_decode` decode rows.

    Args:
        most_seconds: of a step with decode rows; 0 bounds its tokens only.
        least: the fewest tokens that the next chunk may have. They may take longer than
            `most_seconds`, and never exceed the token budget.
    """
    left = worker.budget - num_decode
    if not num_decode or not most_seconds:
        return left
    per_step, per_token = worker.step_cost.line
    if not per_token:
        return left
    allowed = int((most_seconds - per_step) / per_token) - num_decode
    return min(left, max(allowed, least, worker.info.page_size))
