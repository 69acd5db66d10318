"""The text of a recording whose chunks are transcribed concurrently, in the order of chunks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from baton_gateway.generation.output import OutputDelta, TokenLogprob

_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
"""Text of a timestamp; each is one token, so a delta never contains a part of one."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\uffef]")
"""A character of a script without spaces between words: Thai, Lao, Burmese, Khmer, Chinese,
Japanese."""


def without_times(text: str) -> str:
    """Remove timestamps from a text, or from a complete delta of one."""
    return _TIMESTAMP.sub("", text)


@dataclass(frozen=True, slots=True)
class TextPart:
    """The next part of a text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class OrderedText:
    """Holds back the output of later chunks until the earlier ones are complete.

    The text does not begin with white space and has no timestamps, which some outputs contain even
    if none were requested.
    """

    marker: str = ""
    """Text in the output of a chunk before which nothing is spoken; empty if all of it is."""
    spaced: bool = False
    """Whether a space is inserted between chunks; otherwise the first word of a chunk has one."""
    text: str = ""
    """Text returned so far."""
    _current: int = 0
    _waiting: dict[int, list[OutputDelta]] = field(default_factory=dict)
    _raw: str = ""
    """Output of the current chunk, until some of it was returned."""
    _begun: bool = False

    def add(self, delta: OutputDelta) -> TextPart:
        """Add a delta. Returns the new text, possibly empty."""
        self._waiting.setdefault(delta.choice, []).append(delta)
        ready, length = list[OutputDelta](), len(self.text)
        while deltas := self._waiting.pop(self._current, None):
            ready += deltas
            last = deltas[-1].reason is not None
            self._read("".join(delta.text for delta in deltas), last=last)
            if not last:
                break
            self._current, self._raw, self._begun = self._current + 1, "", False
        logprobs = tuple(entry for delta in ready for entry in delta.logprobs)
        return TextPart(self.text[length:], logprobs)

    def _read(self, text: str, *, last: bool) -> None:
        """Append the spoken text of the next output of the current chunk."""
        text = without_times(text)
        if not self._begun:
            self._raw += text
            _, separator, tail = self._raw.partition(self.marker) if self.marker else ("", "", "")
            if self.marker and not separator and not last:
                return
            text = tail if separator else self._raw
            text = text.lstrip() if self.spaced or not self.text else text
            self._begun = bool(text)
            text = self._joint(text) + text
        self.text += text

    def _joint(self, text: str) -> str:
        """Separator between the text and that of the next chunk."""
        if not (self.spaced and self.text and text):
            return ""
        sides = self.text[-1], text[0]
        return "" if any(_UNSPACED.match(side) or side.isspace() for side in sides) else " "
