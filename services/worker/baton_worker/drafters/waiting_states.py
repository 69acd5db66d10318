"""Hidden states of confirmed tokens that a head has not run yet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from baton_worker.kv_cache import KVCache
from baton_worker.speculative.proposer import Column, Tables, TargetStep


class _Part(NamedTuple):
    """Some tokens of a slot, from one step."""

    start: int
    """Position of the first in its sequence."""
    next_tokens: Column
    """int64 [n]: the token behind each."""
    positions: Column
    """int64 [n] or [axes, n]"""
    hidden: Tensor
    """[n, any], as the target gives them."""

    @property
    def end(self) -> int:
        return self.start + len(self.next_tokens)


class WaitingStates:
    """By slot, tokens that follow one another."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_Part]] = {}

    def __len__(self) -> int:
        """Tokens that wait."""
        return sum(len(part.next_tokens) for parts in self._parts.values() for part in parts)

    @property
    def slots(self) -> list[int]:
        """Slots with waiting tokens."""
        return list(self._parts)

    def add(self, step: TargetStep) -> None:
        """The tokens of a step. Those that do not follow the waiting tokens of their slot replace
        them: the sequence continues from another position."""
        ends = np.cumsum(step.counts)
        rows = zip(step.slots.tolist(), step.starts.tolist(), ends.tolist(), strict=True)
        for (slot, start, end), count in zip(rows, step.counts.tolist(), strict=True):
            some = slice(end - count, end)
            # The next step may overwrite what this one has left.
            hidden = step.hidden[some].clone()
            part = _Part(start, step.next_tokens[some], step.positions[..., some], hidden)
            parts = self._parts.setdefault(slot, [])
            if parts and parts[-1].end != start:
                parts.clear()
            parts.append(part)

    def drop(self, slot: int) -> None:
        """Nothing waits for a slot any more."""
        self._parts.pop(slot, None)

    def take(self, slots: list[int], tables: Tables, cache: KVCache) -> TargetStep:
        """The waiting tokens of these slots, at least one each, as one step."""
        each = [self._parts.pop(slot) for slot in slots]
        every = [part for parts in each for part in parts]
        return TargetStep(
            slots=np.array(slots, np.int64),
            starts=np.array([parts[0].start for parts in each], np.int64),
            counts=np.array([parts[-1].end - parts[0].start for parts in each], np.int64),
            next_tokens=np.concatenate([part.next_tokens for part in every]),
            positions=np.concatenate([part.positions for part in every], -1),
            hidden=torch.cat([part.hidden for part in every]),
            tables=tables,
            cache=cache,
        )
