"""Source: the text that a parser has been fed and has not read yet.

A reader is a generator over a `Source`. It takes what it can, and where it needs more text than
there is, it yields; the parser runs it again when text has come, or the end. So a reader is written
like one for a whole text, and where the text was cut makes no difference to it.

    text      [ read, kept for rewind | unread        ]
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
"""Takes text as it is read."""

_SPACE = re.compile(r"[ \t\r\n]*")
WHITESPACE = " \t\r\n"


class Delimiters:
    """Literals to look for: the first that appears, and of those that begin there the longest.

    No literal may contain another one before its last character: the inner one would be complete
    while the outer one could still come.
    """

    def __init__(self, literals: Collection[str]) -> None:
        self.literals = tuple(sorted(set(literals), key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self.literals)) or r"(?!)").search
        self._first = frozenset(literal[0] for literal in self.literals)
        self.longest = max(map(len, self.literals), default=0)

    def find(self, text: str, start: int) -> tuple[int, str | None]:
        """(offset, delimiter), or (offset of the text that could become one, None)."""
        found = self._search(text, start)
        if found is None:
            return self._partial(text, start), None
        return found.start(), found[0]

    def _partial(self, text: str, start: int) -> int:
        for offset in range(max(start, len(text) - self.longest + 1), len(text)):
            if text[offset] in self._first and self.open(text[offset:]):
                return offset
        return len(text)

    def open(self, text: str) -> bool:
        """Whether more text could make `text` one of the delimiters, or a longer one."""
        return any(len(x) > len(text) and x.startswith(text) for x in self.literals)


@lru_cache(maxsize=1024)
def delimiters(*literals: str) -> Delimiters:
    """The `Delimiters` of some literals, made once."""
    return Delimiters(literals)


class Source:
    """Text fed so far and how much of it has been read."""

    __slots__ = ("_marks", "_start", "ended", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.ended = False
        self._start = 0
        """Characters that were dropped before `text`."""
        self._marks: list[int] = []

    def append(self, text: str) -> None:
        """Add text; forgets what was read, from the first mark on excepted."""
        kept = min(self._marks[0] - self._start, self.position) if self._marks else self.position
        self.text = self.text[kept:] + text
        self._start += kept
        self.position -= kept

    # ------------------------------------------------------------ going back

    def mark(self, back: int = 0) -> None:
        """Remember the place `back` characters ago, which were read last, for `rewind`."""
        self._marks.append(self._start + self.position - back)

    def release(self) -> None:
        """Forget the last mark."""
        self._marks.pop()

    def rewind(self) -> None:
        """Go back to the last mark and forget it."""
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
            found = _SPACE.match(self.text, self.position)
            assert found is not None
            if write is not None and found[0]:
                write(found[0])
            self.position = found.end()
            if self.position < len(self.text):
                return self.text[self.position]
            if self.ended:
                return ""
            yield

    def literal(self, wanted: Delimiters) -> Reader[str]:
        """Read the longest of some literals if one is next. Returns it, or ""."""
        while wanted.open(rest := self.text[self.position : self.position + wanted.longest]):
            if self.ended:
                break
            yield
        found = next((x for x in wanted.literals if rest.startswith(x)), "")
        self.position += len(found)
        return found

    def until(self, wanted: Delimiters, write: Write) -> Reader[str]:
        """Pass text on until a delimiter, which is read too. Returns it, or "" at the end."""
        while True:
            offset, found = wanted.find(self.text, self.position)
            if offset > self.position:
                write(self.text[self.position : offset])
                self.position = offset
            if found is not None and (self.ended or not self._grows(offset, wanted)):
                self.position += len(found)
                return found
            if self.ended:
                if self.position < len(self.text):
                    write(self.text[self.position :])
                    self.position = len(self.text)
                return ""
            yield

    def _grows(self, offset: int, wanted: Delimiters) -> bool:
        return wanted.open(self.text[offset : offset + wanted.longest])

    def match(self, pattern: re.Pattern[str], write: Write) -> Reader[None]:
        """Pass on all text of a pattern that matches character by character."""
        while (yield from self.more()):
            found = pattern.match(self.text, self.position)
            if found is None or not found[0]:
                return
            self.position = found.end()
            write(found[0])


def gather(read: Callable[[Write], Reader[T]]) -> Reader[tuple[str, T]]:
    """What a reader wrote, as one text, and what it returned."""
    parts: list[str] = []
    result = yield from read(parts.append)
    return "".join(parts), result
