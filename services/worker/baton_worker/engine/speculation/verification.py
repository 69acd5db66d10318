"""Verification of drafts: they stay while they are what is sampled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton_worker.engine.batch.logits_rows import LogitsRows

NO_TOKEN = -2
"""Placeholder of a token that cannot be sampled; no draft is equal to it."""


def accepted(rows: LogitsRows, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """The rows whose tokens belong to their logs: of each slot all up to the first that is not the
    draft behind it, that one included, and none without a token.

    Args:
        rows: [L], the rows of a slot in the order of its tokens.
        tokens: int32 [L], sampled from each; `NO_TOKEN` where none can be.

    Returns:
        bool [L]
    """
    stays: npt.NDArray[np.bool_]
    if rows.drafts is None:
        stays = tokens != NO_TOKEN
        return stays
    differs = tokens != rows.drafts
    # Differences before each row, without those of the slots before its own.
    before = np.cumsum(differs) - differs
    first = rows.first
    start = before[first][np.cumsum(first) - 1]
    stays = (before == start) & (tokens != NO_TOKEN)
    return stays
