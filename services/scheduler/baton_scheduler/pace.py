"""How long a step takes, learned from those that were: a + b * tokens seconds."""

from __future__ import annotations

from dataclasses import dataclass

_KEPT = 0.98
"""Weight of what is known, per step that is added: about the last 50 count."""


@dataclass(slots=True)
class Pace:
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

    def seconds(self, tokens: int, steps: int) -> float:
        """How long so many tokens in so many steps take."""
        base, slope = self.line
        return base * steps + slope * tokens
