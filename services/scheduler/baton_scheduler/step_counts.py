"""StepCounts: steps, rows and drafts of the sequences in slots, since each was placed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class StepCounts:
    """Totals of all slots and their values at the time a slot was taken, so that a step costs two
    additions."""

    def __init__(self, num_slots: int) -> None:
        self._steps = self._rows = 0
        """Total numbers of planned steps and of their rows."""
        self._start: list[tuple[int, int]] = [(0, 0)] * num_slots
        self._drafted = np.zeros(num_slots, np.int64)
        self._accepted = np.zeros(num_slots, np.int64)

    def start(self, slot: int) -> None:
        """Count from zero for a slot that was taken."""
        self._start[slot] = self._steps, self._rows
        self._drafted[slot] = self._accepted[slot] = 0

    def add_steps(self, steps: int, rows: int) -> None:
        """Count planned steps, with this number of rows in total."""
        self._steps += steps
        self._rows += rows

    def add_drafts(self, slots: Ints, drafted: Ints, accepted: Ints) -> None:
        """Count draft tokens that were verified, and accepted, by slot."""
        self._drafted[slots] += drafted
        self._accepted[slots] += accepted

    def steps(self, slot: int) -> tuple[int, int]:
        """Numbers of steps and of their rows since the slot was taken."""
        steps, rows = self._start[slot]
        return self._steps - steps, self._rows - rows

    def drafts(self, slot: int) -> tuple[int, int]:
        """Numbers of draft tokens that were verified, and accepted, since the slot was taken."""
        return int(self._drafted[slot]), int(self._accepted[slot])
