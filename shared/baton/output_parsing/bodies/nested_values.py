"""Reads nested lists and mappings with a format's own brackets, keys and scalars, and passes them
on as JSON while they arrive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Reader, Source, Write, gather

Copy = Callable[[Source, Write], Reader[None]]


class Bracket(NamedTuple):
    """An opening bracket of a format."""

    json: str
    closer: str
    """Closing bracket of the value."""
    json_closer: str


LIST, MAPPING = Bracket("[", "]", "]"), Bracket("{", "}", "}")


class NestedValues(NamedTuple):
    """Syntax of a format's values."""

    brackets: Mapping[str, Bracket]
    """By opening bracket."""
    scalar: Copy
    key: Copy
    """Reads a key of a mapping and its separator, and writes JSON's."""

    def copy(self, source: Source, write: Write) -> Reader[None]:
        """Read a value, including white space before it, and pass it on."""
        open_brackets: list[Bracket] = []
        while True:
            bracket = self.brackets.get((yield from source.space()))
            if bracket is not None:
                source.position += 1
                write(bracket.json)
                open_brackets.append(bracket)
            else:
                yield from self.scalar(source, write)
            if not (yield from self._next_item(source, write, open_brackets, bracket is not None)):
                return

    def _next_item(
        self, source: Source, write: Write, open_brackets: list[Bracket], first: bool
    ) -> Reader[bool]:
        """Read closing brackets and the separator of the next item. Returns whether there is
        one."""
        while open_brackets:
            char = yield from source.space()
            comma = char == "," and not first
            if comma:
                source.position += 1
                char = yield from source.space()
            if char == open_brackets[-1].closer:
                source.position += 1
                write(open_brackets.pop().json_closer)
                first = False
            elif comma or first:
                key = ""
                if open_brackets[-1].json == "{":
                    key, _ = yield from gather(lambda part: self.key(source, part))
                write((", " if comma else "") + key)
                return True
            else:
                raise Malformed("a comma or a closing bracket is expected")
        return False
