"""Expected output text (OpenAI's `prediction`), and the position of an actual output in it.

predicted:  def area(width, height): return width * height
output:     def area(w, height): return w * height
            ========   ----------------   ----------    = matches, resynchronised after each gap
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

_FOUND = 2
"""Number of last output tokens that must match to find the position again."""


class PredictedText:
    """Follows one output, token by token.

    Args:
        tokens: int32 ids of the text.
    """

    def __init__(self, tokens: bytes) -> None:
        self._column, self._tokens = tokens, array("i", tokens)
        self._at, self._lost = 0, False
        self._last = array("i")
        self.num_fed = 0
        """Number of output tokens so far."""
        self.accepted = 0
        """Number of output tokens that matched the prediction."""

    def __len__(self) -> int:
        return len(self._tokens)

    def feed(self, tokens: Iterable[int]) -> None:
        """Add the next tokens of the output."""
        for token in tokens:
            self.num_fed += 1
            self._last = array("i", [*self._last[-(_FOUND - 1) :], token])
            if not self._lost and self._at < len(self) and self._tokens[self._at] == token:
                self._at += 1
                self.accepted += 1
            else:
                self._find()

    def next(self, most: int) -> array[int]:
        """The next expected tokens, up to `most`; none without a position in the text."""
        return array("i") if self._lost else self._tokens[self._at : self._at + most]

    def _find(self) -> None:
        """Continue after the next match of the last tokens, or else the first match in the text."""
        self._lost = True
        if len(self._last) < _FOUND:
            return
        for begin in (self._at, 0):
            if (end := self._end_of(self._last.tobytes(), begin)) is not None:
                self._at, self._lost = end, False
                return

    def _end_of(self, tokens: bytes, begin: int) -> int | None:
        place = self._column.find(tokens, 4 * begin)
        while place >= 0 and place % 4:  # Between two tokens.
            place = self._column.find(tokens, place + 1)
        return None if place < 0 else (place + len(tokens)) // 4
