"""Number of drafts per row that maximizes expected tokens per second.

A row whose drafts are accepted with probabilities a1, a2, ..., each given those before it, brings
a1 + a1 a2 + ... tokens more. The drafts of all rows of a step are taken in the order of what each
brings, as long as the expected tokens per second of the step grow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton_worker.speculative.step_costs import StepCosts

Column = npt.NDArray[np.int64]
_PRIOR, _WEIGHT = 0.5, 2.0
"""What is believed of rows before any draft was verified, and that a row without drafts of its own
is believed to be like all, as if so many of its drafts had shown it."""
_STEADY, _HOPE = 0.99, 0.002
"""Share of what is believed of all rows that one more draft leaves, and how far a step without
drafts takes it back to the beginning."""
_KEPT = 0.9
"""Share of earlier drafts that counts when a step has verified some."""
_FORGOTTEN = 0.98
"""The same for a step without drafts: so a row that was hard to guess is tried again."""
_GAIN = 1.03
"""A step with drafts must promise so many times the tokens per second of one without."""


class Acceptance:
    """Acceptance rate of the drafts of each slot, one token given those before it."""

    def __init__(self, slots: int) -> None:
        self._right, self._tried = np.zeros(slots), np.zeros(slots)
        self._all = _PRIOR
        """Acceptance rate of drafts of all rows."""

    def enter(self, slot: int) -> None:
        """Reset the slot for a new sequence."""
        self._right[slot] = self._tried[slot] = 0

    def rates(self, slots: Column) -> npt.NDArray[np.float64]:
        """Acceptance rates of these slots, float64 in (0, 1)."""
        right, tried = self._right[slots], self._tried[slots]
        rates: npt.NDArray[np.float64] = (right + self._all * _WEIGHT) / (tried + _WEIGHT)
        return rates

    def rest(self, slots: Column) -> None:
        """Record a step without drafts for these slots."""
        self._right[slots] *= _FORGOTTEN
        self._tried[slots] *= _FORGOTTEN
        if len(slots):
            self._all += _HOPE * (_PRIOR - self._all)

    def observe(self, slots: Column, drafted: Column, accepted: Column) -> None:
        """Record the verified drafts of these slots; of those not accepted only the first was
        tried."""
        tried = accepted + (accepted < drafted)
        self._right[slots] = _KEPT * self._right[slots] + accepted
        self._tried[slots] = _KEPT * self._tried[slots] + tried
        if total := int(tried.sum()):
            share = int(accepted.sum()) / total
            self._all += (1 - _STEADY**total) * (share - self._all)


def draft_lengths(
    rates: npt.NDArray[np.float64],
    most: Column,
    num_tokens: int,
    costs: StepCosts,
    drafting: StepCosts | None = None,
    widths: Column | None = None,
) -> Column:
    """Number of drafts for each of some rows of a step: of depths, if they are trees.

    Args:
        rates: [R], acceptance rates; [R, depths] if drafts of a row differ.
        most: int64 [R], maximum drafts of each row.
        num_tokens: new tokens of the step without drafts.
        costs: of steps.
        drafting: of drafting one token for each of so many rows; None: it takes no time.
        widths: int64 [depths], drafts of each depth of a tree; None: one each. The rate is that of
            any of them.

    Returns:
        int64 [R]
    """
    depth = np.arange(1, int(most.max(initial=0)) + 1)
    rates = rates[:, : len(depth)] if rates.ndim > 1 else rates[:, None].repeat(len(depth), 1)
    gains = np.where(depth <= most[:, None], rates.cumprod(1), 0.0)
    order = np.argsort(-gains, axis=None, kind="stable")[: int(most.sum())]
    wide = np.ones(len(depth), np.int64) if widths is None else widths[: len(depth)]
    drafts = np.concatenate(([0], wide[order % max(1, len(depth))].cumsum()))
    gained = np.concatenate(([0.0], gains.flat[order].cumsum()))
    seconds = costs.seconds(num_tokens + drafts)
    if drafting is not None:
        seconds = seconds + _drafting_seconds(order % len(depth), len(depth), drafting)
    speed = (num_tokens + gained) / seconds
    best = int(speed.argmax())
    if speed[best] < _GAIN * speed[0]:
        best = 0
    rows: Column = order[:best] // len(depth) if len(depth) else order[:0]
    return np.bincount(rows, minlength=len(most)).astype(np.int64)


def _drafting_seconds(depths: Column, deepest: int, drafting: StepCosts) -> npt.NDArray[np.float64]:
    """Seconds of making the first n of some drafts, for each n from 0: float64 [N + 1].

    Args:
        depths: int64 [N], drafts before each in its row. Rows draft side by side, so a drafter runs
            once for all drafts of a depth.
        deepest: number of depths.
    """
    rows = np.zeros((len(depths) + 1, deepest), np.int64)
    rows[np.arange(1, len(rows)), depths] = 1
    rows = rows.cumsum(0)
    seconds: npt.NDArray[np.float64] = np.where(rows > 0, drafting.seconds(rows), 0.0).sum(1)
    return seconds
