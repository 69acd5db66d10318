"""Cost per token over a varying parameter, and its knee, where further growth stops paying.

One rule, `FACTOR` per doubling, for two kinds of curves:

    shares the work (load, workers)    the knee is the last level worth reaching: beyond it, no
                                       doubling gives `FACTOR` times the tokens/s
    adds work (context)                the knee is the first level whose doubling multiplies the
                                       cost of a token by `FACTOR`

`FACTOR` times the tokens per second divides the cost per token by `FACTOR`, so the costs suffice
for both. Levels need not be doublings; changes are scaled to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

FACTOR = 1.3
"""Change of throughput or cost per doubling that counts."""
_SHARES = (
    f"the last doubling still gives {FACTOR} times the tokens/s",
    f"beyond, no doubling gives {FACTOR} times the tokens/s",
)
_ADDS = (
    f"no doubling makes a token {FACTOR} times as dear",
    f"the next doubling makes a token {FACTOR} times as dear",
)
"""Summaries without and with a knee."""


def changes(levels: Sequence[int], costs: Sequence[float]) -> list[float]:
    """Return the factor by which the cost changes between levels, per doubling of the level."""
    points = list(zip(levels, costs, strict=True))
    return [float((b / a) ** (1 / log2(y / x))) for (x, a), (y, b) in pairwise(points)]


def saturation(levels: Sequence[int], costs: Sequence[float]) -> int | None:
    """Return the last level that is worth reaching, for falling costs. None if the last level
    is."""
    worthwhile = [i for i, change in enumerate(changes(levels, costs), 1) if change <= 1 / FACTOR]
    last = max(worthwhile, default=0)
    return levels[last] if last < len(levels) - 1 else None


def onset(levels: Sequence[int], costs: Sequence[float]) -> int | None:
    """Return the first level whose doubling costs `FACTOR` times as much. None if there is none."""
    steps = zip(levels, changes(levels, costs), strict=False)
    return next((level for level, change in steps if change >= FACTOR), None)


@dataclass(frozen=True)
class Curve:
    """Cost per token at ascending levels. The knee is computed from the first entry of `costs`."""

    name: str
    """Varying parameter, in a word or two."""
    axis: str
    """The parameter with its unit: "requests in flight"."""
    levels: tuple[int, ...]
    """Ascending; at least two."""
    costs: Mapping[str, tuple[float, ...]]
    """By name with unit: one positive value per level."""
    why: str
    """Cause of the knee, as the end of a sentence."""
    adds: bool = False
    """True if a higher level adds work to every token instead of sharing it."""

    @property
    def cost(self) -> tuple[float, ...]:
        """The costs from which the knee is computed."""
        return next(iter(self.costs.values()))

    @property
    def knee(self) -> int | None:
        """The knee level; None when the curve has none in the measured range."""
        return (onset if self.adds else saturation)(self.levels, self.cost)

    @property
    def sentence(self) -> str:
        """Summary: the knee, its cause, and the costs before and after it."""
        straight, bent = _ADDS if self.adds else _SHARES
        first, knee, last = self.levels[0], self.knee, self.levels[-1]
        if knee is None:
            return f"No knee up to {last} ({self.axis}): {straight} ({self._values(first, last)})."
        values = self._values(first, knee, last)
        return f"Knee at {knee} ({self.axis}): {bent}, as {self.why} ({values})."

    def _values(self, *levels: int) -> str:
        costs_at = dict(zip(self.levels, self.cost, strict=True))
        costs = ", ".join(f"{costs_at[at]:,.3g} at {at}" for at in dict.fromkeys(levels))
        return f"{next(iter(self.costs))}: {costs}"
