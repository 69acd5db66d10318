"""Limits background (batch) sequences in a step shared with others.

A step takes longer with each of its tokens, and every stream in it waits for that. Next to online
sequences, background sequences get only as many tokens as lengthen the step by a twentieth, by the
measured step times. Alone, they get the complete step.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from baton_scheduler.slot_table import Ints
from baton_scheduler.workers.worker import Worker

_MOST_SLOWDOWN = 0.05
"""Fraction by which the background may lengthen a step."""


class Candidates(NamedTuple):
    """Sequences that may be in a step."""

    decode: Ints
    """Slots that decode."""
    waiting: list[int]
    """Slots with a prompt to prefill, in the order of service; those of the background last."""
    background_tokens: int
    """Most prompt tokens of the background."""


def candidates(worker: Worker, decode: Ints, waiting: list[int]) -> Candidates:
    """The sequences of all decoding and prefilling slots that may be in a step."""
    batch = worker.batch
    if not 0 < batch.num_background < len(batch):
        return Candidates(decode, waiting, sys.maxsize)
    online = decode[~batch.background[decode]]
    ahead = [slot for slot in waiting if not batch.background[slot]]
    if not len(online) and not ahead:
        return Candidates(decode, waiting, sys.maxsize)
    prompts = sum(batch.num_prefillable(slot) for slot in ahead)
    tokens = min(len(online) + prompts, worker.budget)
    room = _room(worker, tokens)
    beside = decode[batch.background[decode]][:room]
    allowed = np.sort(np.concatenate((online, beside)))
    left = room - len(beside)
    return Candidates(allowed, waiting if left else ahead, left)


def _room(worker: Worker, num_tokens: int) -> int:
    """Tokens that the background may have next to `num_tokens` others."""
    per_step, per_token = worker.step_cost.line
    if not worker.step_cost.measured:
        return 0
    if not per_token:
        return worker.budget
    return int(_MOST_SLOWDOWN * (per_step + per_token * num_tokens) / per_token)
