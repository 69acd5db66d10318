"""Calls whose name is outside the JSON: `OPENER NAME SEPARATOR {...} CLOSER`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton.output_parsing.bodies.header import NAME, name_header
from baton.output_parsing.bodies.json_calls import close, copy_arguments
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, delimiters


@dataclass(frozen=True, slots=True)
class NamedJson:
    """Calls of a section, or one call if `call_openers` is empty."""

    call_openers: tuple[str, ...] = ()
    """Each one begins a call of the section."""
    before_name: tuple[str, ...] = ()
    """Optional text before the name."""
    separators: tuple[str, ...] = ()
    """Between name and JSON; the opening brace always counts as one."""
    before_json: tuple[str, ...] = ()
    """Optional text between the separator and the JSON."""
    closers: tuple[str, ...] = ()
    """After a call; any of them may be missing."""
    section_closers: tuple[str, ...] = ()
    named_in_id: str = ""
    """Pattern of names that are the call's id as well; its group `name` is the function."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the calls and the closers after them."""
        call_openers = delimiters(*self.call_openers)
        if self.call_openers and opener not in self.call_openers:
            yield from source.space()
            if not (yield from source.literal(call_openers)):
                raise Malformed("a call is expected")
        while True:
            yield from self._call(source, calls)
            yield from source.space()
            if not (yield from source.literal(call_openers)):
                break
        yield from close(source, self.section_closers)

    def _call(self, source: Source, calls: Calls) -> Reader[None]:
        yield from source.space()
        yield from source.literal(delimiters(*self.before_name))
        separators = delimiters(*self.separators, *self.closers[:1], "{")
        name, separator = yield from name_header(source, separators)
        if separator not in self.separators:
            source.position -= len(separator)
        yield from source.literal(delimiters(*self.before_json))
        name, call_id = self._id(name)
        yield from copy_arguments(source, calls, name, call_id, self.closers)
        yield from close(source, self.closers)

    def _id(self, name: str) -> tuple[str, str | None]:
        match = re.fullmatch(self.named_in_id, name) if self.named_in_id else None
        return (match["name"], name) if match and NAME.fullmatch(match["name"]) else (name, None)
