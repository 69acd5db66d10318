"""Prefill budget: how many tokens of prompts one step has beside rows that decode.

    seconds of a step = a + b * (decode rows + prompt tokens)  <=  most seconds

A step takes longer with each of its tokens, and every row in it waits for that. With a bound on the
time of a step, prompts have as many tokens as its measured times allow (the token budget of
Sarathi-Serve, OSDI 2024, from the cost model of the worker in place of a profile). They have a page
and what cannot be split at least, so that none waits for ever.
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
    per_step, per_token = worker.pace.line
    if not per_token:
        return left
    allowed = int((most_seconds - per_step) / per_token) - num_decode
    return min(left, max(allowed, least, worker.info.page_size))
