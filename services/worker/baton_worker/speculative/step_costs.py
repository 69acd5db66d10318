"""Step costs by number of new tokens: measured at warm-up, updated by every decode step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_EASE = 0.05
"""Weight of one step in the moving average."""


class StepCosts:
    """Seconds of steps, measured at some numbers of tokens, linear between and beyond.

    Args:
        seconds: by number of new tokens, at least two.
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        tokens = sorted(seconds)
        self._tokens = np.array(tokens, np.float64)
        # Costs must not fall with size: a smaller step that was slower was disturbed.
        measured = np.array([seconds[count] for count in tokens])
        self._seconds = np.minimum.accumulate(measured[::-1])[::-1].copy()

    def __str__(self) -> str:
        pairs = zip(self._tokens.tolist(), self._seconds.tolist(), strict=True)
        return ", ".join(f"{tokens:.0f}: {1000 * seconds:.1f} ms" for tokens, seconds in pairs)

    def seconds(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Of steps of so many tokens, float64, in any shape."""
        measured: npt.NDArray[np.float64] = np.interp(tokens, self._tokens, self._seconds)
        last = self._seconds[-1] - self._seconds[-2]
        slope = max(0.0, last / (self._tokens[-1] - self._tokens[-2]))
        beyond: npt.NDArray[np.float64] = slope * np.maximum(0, tokens - self._tokens[-1])
        return measured + beyond

    def observe(self, tokens: int, seconds: float) -> None:
        """Record the time of a step. All costs move with it, since a slow machine or a long context
        slows all steps; neighbouring sizes move twice as far."""
        ratio = np.clip(seconds / float(self.seconds(np.array(tokens))), 0.5, 2.0)
        weights = np.full(len(self._tokens), _EASE)
        at = int(np.searchsorted(self._tokens, tokens))
        weights[max(0, at - 1) : at + 1] += _EASE
        self._seconds *= ratio**weights
