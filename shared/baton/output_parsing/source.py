"""Source: input of a parser that was fed and not read yet.

A reader is a generator over a `Source`. It reads what it can and yields when it needs more text;
the parser resumes it when text or the end has arrived. So a reader is written like one for a
complete text, and does not depend on where the text was split.

    text      [ read, for rewind       | unread        ]
               ^mark                   ^position
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reader = Generator[None, None, T]
"""Yields when it needs more text; returns a `T`."""
Write = Callable[[str], object]
"""Receives text as it is read."""

_SPACE = re.compile(r"[ \t\r\n]*")


class Delimiters:
    """Literals to look for: the first one that appears, and of several at one position the longest.

    No literal may contain another one before its last character: the inner one would be complete
    while the outer one is still incomplete.
    """

    def __init__(self, literals: Collection[str]) -> None:
        self.literals = tuple(sorted(set(literals), key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self.literals)) or r"(?!)").search
        self._first = frozenset(literal[0] for literal in self.literals)
        self.longest = max(map(len, self.literals), default=0)

    def find(self, text: str, start: int) -> tuple[int, str | None]:
        """(offset, delimiter), or (offset of the text that could become one, None)."""
        match = self._search(text, start)
        if match is None:
            return self._partial(text, start), None
        return match.start(), match[0]

    def _partial(self, text: str, start: int) -> int:
        for offset in range(max(start, len(text) - self.longest + 1), len(text)):
            if text[offset] in self._first and self.open(text[offset:]):
                return offset
        return len(text)

    def open(self, text: str) -> bool:
        """Whether more text could turn `text` into a delimiter, or a longer one."""
        return any(len(x) > len(text) and x.startswith(text) for x in self.literals)


@lru_cache(maxsize=1024)
def delimiters(*literals: str) -> Delimiters:
    """The `Delimiters` of some literals, cached."""
    return Delimiters(literals)


class Source:
    """Text fed so far, and the read position."""

    __slots__ = ("_marks", "_start", "ended", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.ended = False
        self._start = 0
        """Number of characters that were dropped before `text`."""
        self._marks: list[int] = []

    def append(self, text: str) -> None:
        """Add text; drop text that was read, except after the first mark."""
        start = min(self._marks[0] - self._start, self.position) if self._marks else self.position
        self.text = self.text[start:] + text
        self._start += start
        self.position -= start

    # ------------------------------------------------------------ going back

    def mark(self, back: int = 0) -> None:
        """Mark the position `back` characters before the current one, for `rewind`."""
        self._marks.append(self._start + self.position - back)

    def release(self) -> None:
        """Drop the last mark."""
        self._marks.pop()

    def rewind(self) -> None:
        """Return to the last mark and drop it."""
        self.position = self._marks.pop() - self._start

    # ------------------------------------------------------------ reading

    def more(self) -> Reader[bool]:
        """Wait for an unread character. Returns False at the end of the text."""
        while self.position >= len(self.text):
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Reader[str]:
        """The next character, unread; "" at the end of the text."""
        while self.position >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.position]

    def space(self, write: Write | None = None) -> Reader[str]:
        """Read white space. Returns the character after it, unread, or "" at the end."""
        while True:
            match = _SPACE.match(self.text, self.position)
            assert match is not None
            if write is not None and match[0]:
                write(match[0])
            self.position = match.end()
            if self.position < len(self.text):
                return self.text[self.position]
            if self.ended:
                return ""
            yield

    def literal(self, literals: Delimiters) -> Reader[str]:
        """Read the longest of some literals if one is next. Returns it, or ""."""
        while literals.open(rest := self.text[self.position : self.position + literals.longest]):
            if self.ended:
                break
            yield
        literal = next((x for x in literals.literals if rest.startswith(x)), "")
        self.position += len(literal)
        return literal

    def until(self, ends: Delimiters, write: Write) -> Reader[str]:
        """Pass on text up to a delimiter, which is read too. Returns it, or "" at the end."""
        while True:
            offset, delimiter = ends.find(self.text, self.position)
            if offset > self.position:
                write(self.text[self.position : offset])
                self.position = offset
            if delimiter is not None and (self.ended or not self._grows(offset, ends)):
                self.position += len(delimiter)
                return delimiter
            if self.ended:
                if self.position < len(self.text):
                    write(self.text[self.position :])
                    self.position = len(self.text)
                return ""
            yield

    def _grows(self, offset: int, ends: Delimiters) -> bool:
        return ends.open(self.text[offset : offset + ends.longest])

    def match(self, pattern: re.Pattern[str], write: Write) -> Reader[None]:
        """Pass on all text that matches a pattern character by character."""
        while (yield from self.more()):
            match = pattern.match(self.text, self.position)
            if match is None or not match[0]:
                return
            self.position = match.end()
            write(match[0])


def gather(read: Callable[[Write], Reader[T]]) -> Reader[tuple[str, T]]:
    """Collect the text that a reader writes. Returns it with the reader's result."""
    parts: list[str] = []
    result = yield from read(parts.append)
    return "".join(parts), result
