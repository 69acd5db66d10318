"""The text of a recording whose chunks are written at the same time, in the order of chunks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from baton_gateway.generation.output import OutputDelta, TokenLogprob

_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
"""Text of a timestamp; each is one token, so no delta has a part of one."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uf900-\uffef]")
"""A character of a script without spaces between words: Thai, Lao, Burmese, Khmer, Chinese,
Japanese."""


def without_times(text: str) -> str:
    """A text, or a whole delta of one, without timestamps."""
    return _TIMESTAMP.sub("", text)


@dataclass(frozen=True, slots=True)
class TextPart:
    """The next part of a text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True)
class OrderedText:
    """Holds back what is written of later chunks until the ones before are complete.

    The text does not begin with white space, and has no timestamps, which an output may have that
    was asked for none.
    """

    marker: str = ""
    """Text in the output of a chunk before which nothing is spoken; empty if all of it is."""
    spaced: bool = False
    """Whether a space is put between chunks; else the first word of one has a space before it."""
    text: str = ""
    """What has been given out."""
    _current: int = 0
    _held: dict[int, list[OutputDelta]] = field(default_factory=dict)
    _raw: str = ""
    """Output of the current chunk, until something of it has been given out."""
    _begun: bool = False

    def add(self, delta: OutputDelta) -> TextPart:
        """Add a delta. Returns what can be given out, which may be nothing."""
        self._held.setdefault(delta.choice, []).append(delta)
        ready, length = list[OutputDelta](), len(self.text)
        while deltas := self._held.pop(self._current, None):
            ready += deltas
            last = deltas[-1].reason is not None
            self._read("".join(one.text for one in deltas), last=last)
            if not last:
                break
            self._current, self._raw, self._begun = self._current + 1, "", False
        logprobs = tuple(entry for one in ready for entry in one.logprobs)
        return TextPart(self.text[length:], logprobs)

    def _read(self, text: str, *, last: bool) -> None:
        """Append what is spoken of the next output of the current chunk."""
        text = without_times(text)
        if not self._begun:
            self._raw += text
            _, found, after = self._raw.partition(self.marker) if self.marker else ("", "", "")
            if self.marker and not found and not last:
                return
            text = after if found else self._raw
            text = text.lstrip() if self.spaced or not self.text else text
            self._begun = bool(text)
            text = self._joint(text) + text
        self.text += text

    def _joint(self, text: str) -> str:
        """What is between the text and that of the next chunk."""
        if not (self.spaced and self.text and text):
            return ""
        sides = self.text[-1], text[0]
        return "" if any(_UNSPACED.match(side) or side.isspace() for side in sides) else " "
