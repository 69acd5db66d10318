"""Linear cost model of step times, a + b * tokens seconds, fitted to measured steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_KEPT = 0.98
"""Weight of earlier steps when one is added: about the last 50 count."""


@dataclass(slots=True)
class LinearCostModel:
    """Exponentially weighted least squares over steps."""

    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Add a step of `tokens` tokens that took `seconds`."""
        self._weight = _KEPT * self._weight + 1.0
        self._x = _KEPT * self._x + tokens
        self._y = _KEPT * self._y + seconds
        self._xx = _KEPT * self._xx + tokens * tokens
        self._xy = _KEPT * self._xy + tokens * seconds

    @classmethod
    def together(cls, models: Iterable[Self]) -> Self:
        """Combine the measurements of several models."""
        total = cls()
        for model in models:
            total._weight += model._weight
            total._x += model._x
            total._y += model._y
            total._xx += model._xx
            total._xy += model._xy
        return total

    @property
    def measured(self) -> bool:
        """True if a step was added."""
        return self._weight > 0.0

    @property
    def line(self) -> tuple[float, float]:
        """(a, b): seconds per step and per token, both non-negative.

        While all steps are of similar size, the whole time is attributed to tokens.
        """
        if not self.measured:
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
        """True if step sizes differ by more than their mean."""
        return self._weight * self._xx > 2 * self._x * self._x > 0

    @property
    def rate(self) -> float:
        """Tokens per second over all steps; 0 before the first."""
        return self._x / self._y if self._y else 0.0

    def seconds(self, tokens: int, steps: int) -> float:
        """Estimated seconds for `tokens` tokens in `steps` steps."""
        base, slope = self.line
        return base * steps + slope * tokens
