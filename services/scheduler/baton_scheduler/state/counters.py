"""Totals since the start of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


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
    """Commands sent to workers, of operators or of the scheduler itself."""
    failed_transfers: int = 0
    """Failed KV transfers; they cost only time."""
    media_encoded_locally: int = 0
    """Media items encoded by workers with pages."""
    num_drafts: int = 0
    """Rows of steps that verified draft tokens."""
    num_draft_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    """Accepted draft tokens, by their position in the draft."""

    def add_drafts(self, drafted: NDArray[np.int64], accepted: NDArray[np.int64]) -> None:
        """Count rows that verified at least one draft each: `drafted` tokens, of which
        `accepted`."""
        self.num_drafts += len(drafted)
        self.num_draft_tokens += int(drafted.sum())
        per_pos = self.num_accepted_tokens_per_pos
        per_pos += [0] * (int(drafted.max(initial=0)) - len(per_pos))
        for position, count in enumerate(np.bincount(accepted)[::-1].cumsum()[::-1][1:].tolist()):
            per_pos[position] += count
