"""Measures how long a drafter takes for one token of each of some rows."""

from __future__ import annotations

import time

import numpy as np
import torch

from baton_worker.drafters.draft_forward import DraftForward
from baton_worker.speculative.proposer import DraftRequest
from baton_worker.speculative.step_costs import StepCosts

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_TIMES = 3
"""Passes of each number of rows; the fastest counts, and the first meets a shape."""
_PROMPT = 8
_GROUP = b"measured"
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)


def measure(run: DraftForward, max_num_seqs: int) -> StepCosts:
    """Seconds by rows, of as many numbers as there are slots and pages for. Nothing is held
    afterwards."""
    seconds = dict[int, float]()
    for rows in _ROWS:
        slots = np.arange(rows)
        if rows > max_num_seqs or not all(_enters(run, slot) for slot in range(rows)):
            break
        seconds[rows] = _fastest(run, slots)
        _release(run, rows)
    _release(run, max_num_seqs)
    if not seconds:  # Not even one row has pages: nothing will be drafted.
        return StepCosts({1: 0.0, 2: 0.0})
    return StepCosts({2 * max(seconds): seconds[max(seconds)]} | seconds)


def catch_up_tokens(costs: StepCosts, num_drafts: int) -> int:
    """Most tokens of logs without KV that one step runs: they take about as long as the passes of
    its drafts."""
    most = num_drafts * float(costs.seconds(np.array(1)))
    fitting = [chunk for chunk in _CHUNKS if float(costs.seconds(np.array(chunk))) <= most]
    return max(fitting, default=_CHUNKS[0])


def _enters(run: DraftForward, slot: int) -> bool:
    tokens = np.zeros(_PROMPT, np.int32)
    run.kv.follow(DraftRequest(slot, tokens, 1, _GROUP))
    return run.kv.reserve(slot, _PROMPT + _TIMES)


@torch.inference_mode()
def _fastest(run: DraftForward, slots: np.ndarray) -> float:
    prompts = _PROMPT - run.kv.computed[slots]
    run(slots, prompts, np.zeros(int(prompts.sum()), np.int64))
    ones, took = np.ones_like(slots), list[float]()
    for _ in range(_TIMES):
        begin = time.perf_counter()
        run.logits(run(slots, ones, np.zeros_like(slots))).argmax(1).cpu()
        took.append(time.perf_counter() - begin)
    return min(took)


def _release(run: DraftForward, slots: int) -> None:
    for slot in range(slots):
        run.kv.release(slot)
