"""Accumulates hidden states over the chunks of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from baton_worker.pooling.recipe import PoolingRecipe, Take


class PoolingAccumulator:
    """Accumulated states per slot.

    A text may be computed in several steps; between them only what the recipe needs is kept: a sum,
    a maximum, a first state, or the states at step tokens.
    """

    def __init__(self, recipe: PoolingRecipe) -> None:
        self._take = _TAKES[recipe.take]
        self._recipe = recipe
        self._kept: dict[int, Tensor] = {}

    def begin(self, slots: Iterable[int]) -> None:
        """Reset these slots: a sequence enters or leaves them."""
        for slot in slots:
            self._kept.pop(slot, None)

    def add(self, slot: int, states: Tensor, tokens: Tensor) -> None:
        """Add a chunk: states [n, hidden] and int64 [n] ids of the next n tokens."""
        old = self._kept.get(slot)
        self._kept[slot] = self._take(old, states, tokens == self._recipe.step_id)

    def finish(self, slot: int, length: int) -> Tensor:
        """float32 [K, hidden] of a text of `length` tokens, after its last chunk was added."""
        states = self._kept.pop(slot)
        return states / length if self._recipe.take == "mean" else states


def _last(old: Tensor | None, states: Tensor, ends: Tensor) -> Tensor:
    return states[-1:].float()


def _first(old: Tensor | None, states: Tensor, ends: Tensor) -> Tensor:
    return states[:1].float() if old is None else old


def _sum(old: Tensor | None, states: Tensor, ends: Tensor) -> Tensor:
    total = states.sum(0, keepdim=True, dtype=torch.float32)
    return total if old is None else old + total


def _maximum(old: Tensor | None, states: Tensor, ends: Tensor) -> Tensor:
    most = states.amax(0, keepdim=True).float()
    return most if old is None else torch.maximum(old, most)


def _steps(old: Tensor | None, states: Tensor, ends: Tensor) -> Tensor:
    new = states[ends].float()
    return new if old is None else torch.cat((old, new))


_TAKES: dict[Take, Callable[[Tensor | None, Tensor, Tensor], Tensor]] = {
    "last": _last,
    "first": _first,
    "mean": _sum,
    "max": _maximum,
    "steps": _steps,
}
