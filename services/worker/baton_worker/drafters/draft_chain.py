"""The loop of a drafter that draws one draft after the other for several sequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from baton_worker.speculative.proposer import NO_DRAFT, Column, DraftRequest, DraftSampler, Tokens
from baton_worker.speculative.step_costs import StepCosts

Logits = Callable[[int, Column, Tokens], Tensor]
"""(drafts before, rows that go on, int32 their newest tokens) to float32 [rows, vocab]."""


def draft_chain(
    requests: Sequence[DraftRequest],
    sampler: DraftSampler,
    most: int,
    logits: Logits,
    costs: StepCosts | None = None,
) -> list[Tokens]:
    """Up to `most` drafts of each request, in the order of the requests. A row ends with the first
    draft that cannot be made; `logits` is called for the others alone. `costs` records the seconds
    of each pass."""
    slots = np.array([request.slot for request in requests], np.int64)
    room = np.array([min(request.most, most) for request in requests])
    newest = np.array([request.tokens[-1] for request in requests], np.int32)
    drafts: list[list[int]] = [[] for _ in requests]
    rows = np.arange(len(requests))
    for depth in range(int(room.max(initial=0))):
        rows = rows[room[rows] > depth]
        begin, count = time.perf_counter(), len(rows)
        drawn = sampler.sample(logits(depth, rows, newest[rows]), slots[rows])
        if costs is not None:
            costs.observe(count, time.perf_counter() - begin)
        rows, drawn = rows[drawn != NO_DRAFT], drawn[drawn != NO_DRAFT]
        if not len(rows):
            break
        newest[rows] = drawn
        for row, token in zip(rows.tolist(), drawn.tolist(), strict=True):
            drafts[row].append(token)
    return [np.array(some, np.int32) for some in drafts]
