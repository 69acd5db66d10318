"""Reindexing of log-probability columns when a step's tokens are split among gateways."""

from __future__ import annotations

import numpy as np

from baton.errors import WireError
from baton.protocol import Logprobs
from baton_scheduler.slot_table import Ints


def check(columns: Logprobs, num_tokens: int) -> None:
    """Raise `WireError` if columns differ in length or refer to a missing token."""
    num_entries = len(columns.counts)
    num_tops = int(np.frombuffer(columns.counts, np.uint8).sum())
    lengths = (len(columns.rows), len(columns.chosen), len(columns.ranks))
    if lengths != (4 * num_entries,) * 3:
        raise WireError("log-probability columns have different lengths")
    if (len(columns.top_ids), len(columns.top_values)) != (4 * num_tops,) * 2:
        raise WireError("log-probability alternatives do not match their counts")
    if num_entries and int(np.frombuffer(columns.rows, "<u4").max()) >= num_tokens:
        raise WireError("a log-probability describes a token that is not in the message")


def select(columns: Logprobs, position: Ints) -> Logprobs | None:
    """The entries whose token is kept. `position[old index]` is the new index, or -1 to drop it.

    None when nothing is left. The columns have passed `check`.
    """
    new = position[np.frombuffer(columns.rows, "<u4")]
    keep = new >= 0
    if not keep.any():
        return None
    counts = np.frombuffer(columns.counts, np.uint8)
    tops = np.repeat(keep, counts)
    return Logprobs(
        rows=new[keep].astype("<u4").tobytes(),
        chosen=np.frombuffer(columns.chosen, "<f4")[keep].tobytes(),
        ranks=np.frombuffer(columns.ranks, "<u4")[keep].tobytes(),
        counts=counts[keep].tobytes(),
        top_ids=np.frombuffer(columns.top_ids, "<i4")[tops].tobytes(),
        top_values=np.frombuffer(columns.top_values, "<f4")[tops].tobytes(),
    )
