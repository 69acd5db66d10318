"""Totals that the scheduler counts since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    arrived: int = 0
    finished: int = 0
    """Sequences that ended with a finish reason."""
    tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    lost_workers: int = 0
    stale_results: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, once per sequence."""
    prefix_hits: int = 0
    """Prompt tokens found in the prefix cache."""
    handoffs: int = 0
    """Running sequences that moved to another worker with their KV."""
    commands: int = 0
    """Commands to workers, of operators or on their behalf."""
    failed_transfers: int = 0
    """Failed KV transfers; they cost only time."""
