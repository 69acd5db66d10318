"""Measures how long a drafter takes: for a token of each of some rows, and for a chunk of one."""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
import torch

from baton_worker.speculative.proposer import Column, DraftRequest
from baton_worker.speculative.step_costs import StepCosts

if TYPE_CHECKING:
    from baton_worker.drafters.draft_forward import DraftForward

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_CHUNKS = (16, 64)
_TIMES = 3
"""Passes of each; the fastest counts, and the first one initialises kernels for its shape."""
_PROMPT = 8
_LEAST, _MOST = 16, 1024
"""Bounds of the tokens with which one step catches up."""
_NEVER = StepCosts({1: 0.0, 2: 0.0})
"""Costs with which nothing is drafted: there is no room for one row."""
_TRIALS = 3
"""Passes before a drafter that is not measured at the start has costs: the fastest counts."""


class PassCosts(StepCosts):
    """Seconds of a drafter's passes, updated by those that it makes for drafts; 0 at first."""

    def __init__(self) -> None:
        super().__init__({1: 0.0, 2: 0.0})
        self._trials: list[float] = []

    def observe(self, tokens: int, seconds: float) -> None:
        """Record the time of a pass with one token for each of so many rows."""
        if len(self._trials) < _TRIALS:
            self._trials.append(seconds)
            if len(self._trials) == _TRIALS:
                self._seconds[:] = min(self._trials)
        else:
            super().observe(tokens, seconds)


def measure_rows(run: DraftForward, max_num_seqs: int) -> StepCosts:
    """Seconds of one token for each of some rows, by rows: as many as there are slots and pages
    for. Nothing is held afterwards."""
    seconds = dict[int, float]()
    for rows in _ROWS[: bisect_right(_ROWS, max_num_seqs)]:
        took = _fastest(run, np.arange(rows), 1)
        if took is None:
            break
        seconds[rows] = took
    return StepCosts({2: seconds[1]} | seconds) if seconds else _NEVER


def measure_chunks(run: DraftForward) -> StepCosts:
    """Seconds of a row's tokens, by their number. Nothing is held afterwards."""
    took = {tokens: _fastest(run, np.arange(1), tokens) for tokens in (1, *_CHUNKS)}
    seconds = {tokens: value for tokens, value in took.items() if value is not None}
    return StepCosts({2: seconds[1]} | seconds) if seconds else _NEVER


def catch_up_tokens(chunks: StepCosts, num_drafts: int) -> int:
    """Most tokens of logs without KV that one step runs, a power of two: they take about as long as
    the passes of its drafts."""
    most, tokens = num_drafts * float(chunks.seconds(np.array(1))), _LEAST
    while tokens < _MOST and float(chunks.seconds(np.array(2 * tokens))) <= most:
        tokens *= 2
    return tokens


@torch.inference_mode()
def _fastest(run: DraftForward, slots: Column, tokens: int) -> float | None:
    """Seconds of so many tokens for each of these slots behind a short prompt; None if there is no
    room for them."""
    try:
        if not all(_enters(run, slot, _PROMPT + _TIMES * tokens) for slot in slots.tolist()):
            return None
        took = [_pass(run, slots, count) for count in (_PROMPT, *[tokens] * _TIMES)]
        return min(took[1:])
    finally:
        for slot in slots.tolist():
            run.kv.release(slot)


def _enters(run: DraftForward, slot: int, length: int) -> bool:
    # A group of its own, so that nothing is found of an earlier one.
    prompt = np.zeros(_PROMPT, np.int32)
    run.kv.follow(DraftRequest(slot, prompt, 1, b"%d measured" % slot))
    return run.kv.reserve(slot, length)


def _pass(run: DraftForward, slots: Column, tokens: int) -> float:
    """Seconds of so many tokens for each slot, and of a token behind them."""
    begin, counts = time.perf_counter(), np.full(len(slots), tokens)
    hidden = run(slots, counts, np.zeros(tokens * len(slots), np.int64))
    run.logits(hidden, np.cumsum(counts) - 1).argmax(1).cpu()
    return time.perf_counter() - begin
