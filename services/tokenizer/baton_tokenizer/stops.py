"""Stop strings in incremental text."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Passes text on until a stop string is complete; holds back text that may become one.

    The match that completes first wins; of two that complete at once, the one that starts first. So
    the result does not depend on how the text is split.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Add text; return the part that is final. Empty after a match."""
        if self.matched is not None:
            return ""
        text = self._held + text
        matches = [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]
        if matches:
            end, start, self.matched = min(matches)
            self._held = ""
            return text[: end if self._include else start]
        keep = self._overhang(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """End the text; return the held-back part."""
        text, self._held = self._held, ""
        return text

    def _overhang(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            at = max(0, len(text) - len(stop) + 1)
            while (at := text.find(stop[0], at)) >= 0:
                if stop.startswith(text[at:]):
                    longest = max(longest, len(text) - at)
                    break
                at += 1
        return longest
