"""The text of a recording whose chunks are written at the same time, in the order of chunks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from baton_gateway.generation.output import OutputDelta, TokenLogprob

_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
"""Text of a timestamp; each is one token, so no delta has a part of one."""


def spoken(text: str) -> str:
    """Return a text without timestamps, which an output may have that was asked for none."""
    return _TIMESTAMP.sub("", text)


@dataclass(frozen=True, slots=True)
class TextPart:
    """The next part of a text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class OrderedText:
    """Holds back what is written of later chunks until the ones before are complete.

    The text does not begin with white space: the first word of a chunk has a space before it.
    """

    text: str = ""
    """What has been given out."""
    _current: int = 0
    _held: dict[int, list[OutputDelta]] = field(default_factory=dict)

    def add(self, delta: OutputDelta) -> TextPart:
        """Add a delta. Returns what can be given out, which may be nothing."""
        self._held.setdefault(delta.choice, []).append(delta)
        ready = list[OutputDelta]()
        while deltas := self._held.pop(self._current, None):
            ready += deltas
            if deltas[-1].reason is None:
                break
            self._current += 1
        text = spoken("".join(one.text for one in ready))
        text = text if self.text else text.lstrip()
        self.text += text
        return TextPart(text, tuple(entry for one in ready for entry in one.logprobs))
