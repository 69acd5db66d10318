"""Acceptance rate of drafts that were looked up, by the length of their match.

A draft behind a long match is accepted far more often than one behind a short match, and each
accepted draft makes the match of the next one longer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton_worker.speculative.lookup import LONGEST_MATCH

Column = npt.NDArray[np.int64]
Rates = npt.NDArray[np.float64]
_WEIGHT = 4.0
"""Drafts that would have to be verified to count as much as what is believed before any."""
_KEPT = 0.995
"""Share of earlier drafts of a length that counts when one more was verified, or was not worth
being made: so a length whose drafts were rejected is tried again."""


class MatchAcceptance:
    """Counts of all sequences: the estimate that a new sequence begins with."""

    def __init__(self) -> None:
        # Lengths share a class with those that are at most 1.4 times as long.
        self._class = np.round(2 * np.log2(np.arange(LONGEST_MATCH + 1).clip(1))).astype(np.int64)
        longest = np.array([np.flatnonzero(self._class == n).max(initial=1) for n in self._classes])
        self._prior = 1 - 1 / (1.3 + longest / 2)
        self._accepted, self._verified = np.zeros((2, len(longest)))

    @property
    def _classes(self) -> range:
        return range(int(self._class[-1]) + 1)

    @property
    def best(self) -> float:
        """Of the draft behind the best match."""
        return float(self._rates.max())

    @property
    def _rates(self) -> Rates:
        rates: Rates = (self._accepted + _WEIGHT * self._prior) / (self._verified + _WEIGHT)
        return rates

    def rates(self, lengths: Column, depths: int) -> Rates:
        """Probability that each of some drafts is accepted if those before it were: float64
        [R, depths].

        Args:
            lengths: int64 [R], of the match of each row.
        """
        return self._rates[self._classes_of(lengths[:, None] + np.arange(depths))]

    def observe(self, length: int, drafted: int, accepted: int) -> None:
        """Record the verified drafts of one match; of those not accepted only the first was
        tried."""
        tried = accepted + (accepted < drafted)
        for depth, of in enumerate(self._classes_of(length + np.arange(tried)).tolist()):
            self._forget(of)
            self._verified[of] += 1
            self._accepted[of] += depth < accepted

    def rest(self, length: int) -> None:
        """Record a match whose drafts were not worth being made."""
        self._forget(int(self._class[length]))

    def _forget(self, of: int) -> None:
        self._accepted[of] *= _KEPT
        self._verified[of] *= _KEPT

    def _classes_of(self, lengths: Column) -> Column:
        classes: Column = self._class[lengths.clip(0, LONGEST_MATCH)]
        return classes
