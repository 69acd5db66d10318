"""What a token costs while something grows, and the knee: where growing further stops to pay.

One rule, `FACTOR` per doubling, for two kinds of curves:

    what shares the work (load, workers)    the knee is the last level whose reaching paid: beyond
                                            it, no doubling gives `FACTOR` times the tokens/s
    what adds work (context)                the knee is the first level whose doubling makes a token
                                            `FACTOR` times as dear

What gives `FACTOR` times the tokens per second makes a token so many times cheaper: so the cost
alone tells both. Levels need not be doublings of each other; changes are scaled to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2

FACTOR = 1.3
"""Times as many tokens per second, or times the cost, that a doubling must make to count."""
_SHARES = (
    f"the last doubling still gives {FACTOR} times the tokens/s",
    f"beyond, no doubling gives {FACTOR} times the tokens/s",
)
_ADDS = (
    f"no doubling makes a token {FACTOR} times as dear",
    f"the next doubling makes a token {FACTOR} times as dear",
)
"""What is said without a knee, and with one."""


def changes(levels: Sequence[int], costs: Sequence[float]) -> list[float]:
    """Factor by which the cost changes from each level to the next, per doubling of the level."""
    points = list(zip(levels, costs, strict=True))
    return [float((b / a) ** (1 / log2(y / x))) for (x, a), (y, b) in pairwise(points)]


def saturation(levels: Sequence[int], costs: Sequence[float]) -> int | None:
    """The last level whose reaching paid, of costs that should fall. None while the last pays."""
    paid = [i for i, change in enumerate(changes(levels, costs), 1) if change <= 1 / FACTOR]
    last = max(paid, default=0)
    return levels[last] if last < len(levels) - 1 else None


def onset(levels: Sequence[int], costs: Sequence[float]) -> int | None:
    """The first level whose doubling costs `FACTOR` times as much. None when none does."""
    steps = zip(levels, changes(levels, costs), strict=False)
    return next((level for level, change in steps if change >= FACTOR), None)


@dataclass(frozen=True)
class Curve:
    """Costs of a token at rising levels. The first of `costs` is what the knee is found in."""

    name: str
    """What grows, in a word or two."""
    axis: str
    """The same as a unit: "requests in flight"."""
    levels: tuple[int, ...]
    """Ascending; at least two."""
    costs: Mapping[str, tuple[float, ...]]
    """By name, with their unit: one value per level, positive."""
    why: str
    """What bends the curve, as the end of a sentence."""
    adds: bool = False
    """A higher level adds work to every token, instead of sharing it."""

    @property
    def cost(self) -> tuple[float, ...]:
        """The costs in which the knee is found."""
        return next(iter(self.costs.values()))

    @property
    def knee(self) -> int | None:
        """A level, or None when the curve does not bend where it was measured."""
        return (onset if self.adds else saturation)(self.levels, self.cost)

    @property
    def sentence(self) -> str:
        """The knee, its reason, and the costs before and after it."""
        straight, bent = _ADDS if self.adds else _SHARES
        first, knee, last = self.levels[0], self.knee, self.levels[-1]
        if knee is None:
            return f"No knee up to {last} ({self.axis}): {straight} ({self._told(first, last)})."
        told = self._told(first, knee, last)
        return f"Knee at {knee} ({self.axis}): {bent}, as {self.why} ({told})."

    def _told(self, *levels: int) -> str:
        known = dict(zip(self.levels, self.cost, strict=True))
        costs = ", ".join(f"{known[at]:,.3g} at {at}" for at in dict.fromkeys(levels))
        return f"{next(iter(self.costs))}: {costs}"
