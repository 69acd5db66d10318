"""Rows leave a chain of drafts at their own limits, and where a draft cannot be made."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.drafters.draft_chain import draft_chain
from baton_worker.speculative.proposer import NO_DRAFT, Column, DraftRequest, Tokens


class Ending:
    """Draws the most probable token; slot 7 ends with its second draft."""

    def sample(self, logits: Tensor, slots: Column) -> Tokens:
        tokens = logits.argmax(1).numpy().astype(np.int32)
        tokens[(slots == 7) & (tokens == 12)] = NO_DRAFT
        return tokens


def test_rows_leave_at_their_limits() -> None:
    """Each draft is one more than the token before it."""
    asked = list[tuple[int, list[int], list[int]]]()

    def logits(depth: int, rows: Column, newest: Tokens) -> Tensor:
        asked.append((depth, rows.tolist(), newest.tolist()))
        return torch.eye(64)[torch.from_numpy(newest).long() + 1]

    tokens = [np.array([1, last], np.int32) for last in (30, 10, 20)]
    requests = [DraftRequest(s, t, m) for s, t, m in zip((3, 7, 5), tokens, (1, 4, 9), strict=True)]
    drafts = draft_chain(requests, Ending(), 3, logits)
    assert [some.tolist() for some in drafts] == [[31], [11], [21, 22, 23]]
    assert all(some.dtype == np.int32 for some in drafts)
    assert asked == [(0, [0, 1, 2], [30, 10, 20]), (1, [1, 2], [11, 21]), (2, [2], [22])]
