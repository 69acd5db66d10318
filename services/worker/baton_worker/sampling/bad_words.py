"""Bad words: token sequences that are never completed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ANY, _NONE = -1, -2
"""Placeholders: matches every token; matches no token."""


@dataclass(frozen=True, slots=True)
class BadWords:
    """Forbidden sequences: `last[i]` may not follow the tokens `before[i]`."""

    before: npt.NDArray[np.int32]
    """[W, L]: right-aligned, padded with `_ANY`."""
    last: npt.NDArray[np.int64]
    """[W]"""

    @classmethod
    def of(cls, words: tuple[tuple[int, ...], ...]) -> BadWords:
        """From token sequences, none of them empty."""
        length = max(map(len, words)) - 1
        before = [(_ANY,) * (length + 1 - len(word)) + word[:-1] for word in words]
        last = np.array([word[-1] for word in words], np.int64)
        return cls(np.array(before, np.int32).reshape(len(words), length), last)

    def after(self, log: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Ids that would complete a bad word after this log, int64, possibly with duplicates."""
        length = self.before.shape[1]
        tail = np.full(length, _NONE, np.int32)
        count = min(len(log), length)
        if count:
            tail[length - count :] = log[-count:]
        matches = ((self.before == _ANY) | (self.before == tail)).all(1)
        tokens: npt.NDArray[np.int64] = self.last[matches]
        return tokens
