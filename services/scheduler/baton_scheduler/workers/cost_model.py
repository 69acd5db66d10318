"""How long a step takes, learned from those that were: a + b * tokens seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_KEPT = 0.98
"""Weight of what is known, per step that is added: about the last 50 count."""


@dataclass(slots=True)
class LinearCostModel:
    """Least squares over steps, the latest of which weigh most."""

    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens has taken so long."""
        self._weight = _KEPT * self._weight + 1.0
        self._x = _KEPT * self._x + tokens
        self._y = _KEPT * self._y + seconds
        self._xx = _KEPT * self._xx + tokens * tokens
        self._xy = _KEPT * self._xy + tokens * seconds

    @classmethod
    def together(cls, paces: Iterable[Self]) -> Self:
        """One pace of what all of them have seen."""
        total = cls()
        for pace in paces:
            total._weight += pace._weight
            total._x += pace._x
            total._y += pace._y
            total._xx += pace._xx
            total._xy += pace._xy
        return total

    @property
    def known(self) -> bool:
        """Some step was added."""
        return self._weight > 0.0

    @property
    def line(self) -> tuple[float, float]:
        """(a, b): seconds of any step, and more per token; neither is negative.

        While all steps were of about one size, a token costs its share of them.
        """
        if not self.known:
            return 0.0, 0.0
        x, y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - x * x
        if spread < 0.01 * x * x:
            return 0.0, y / x if x else 0.0
        slope = (self._xy / self._weight - x * y) / spread
        slope = min(max(slope, 0.0), y / x)
        return y - slope * x, slope

    @property
    def varied(self) -> bool:
        """Steps of very different sizes were added: more than their mean apart."""
        return self._weight * self._xx > 2 * self._x * self._x > 0

    @property
    def rate(self) -> float:
        """Tokens per second of all that was added; 0 before anything was."""
        return self._x / self._y if self._y else 0.0

    def seconds(self, tokens: int, steps: int) -> float:
        """How long so many tokens in so many steps take."""
        base, slope = self.line
        return base * steps + slope * tokens
