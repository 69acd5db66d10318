"""Calls of Gemma: `call:NAME{KEY:VALUE,...}`, whose strings are delimited by escape tokens."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from baton.output_parsing.bodies.header import header, name_header
from baton.output_parsing.bodies.json_calls import close
from baton.output_parsing.bodies.json_value import NUMBER
from baton.output_parsing.bodies.nested_values import LIST, MAPPING, NestedValues
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, Write, delimiters, gather

_ATOM = re.compile(r"[-+.0-9A-Za-z_]+")
_KEY_SHAPE = re.compile(r"[^:{}\[\]<>\n]{0,256}")
_LITERALS = {"true", "false", "null"}


@dataclass(frozen=True, slots=True)
class EscapedValues:
    """One call."""

    escape: str
    closers: tuple[str, ...]

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the call and its closer."""
        yield from source.space()
        if not (yield from source.literal(delimiters("call:"))):
            raise Malformed("a call is expected")
        name, _ = yield from name_header(source, delimiters("{"))
        source.position -= 1
        yield from self._object(source, calls, name)
        yield from close(source, self.closers)

    def _object(self, source: Source, calls: Calls, name: str) -> Reader[None]:
        started = False

        def write(text: str) -> None:
            """Start the call with its first argument: until then it could be text."""
            nonlocal started
            if not started and text != "{":
                calls.start(name)
                calls.write("{")
                started = True
            if started:
                calls.write(text)

        brackets = {"{": MAPPING, "[": LIST}
        yield from NestedValues(brackets, self._scalar, self._key).copy(source, write)
        calls.end()

    def _key(self, source: Source, write: Write) -> Reader[None]:
        if (yield from source.literal(delimiters(self.escape))):
            key, delimiter = yield from gather(
                lambda part: source.until(delimiters(self.escape), part)
            )
            char = yield from source.space()
            if not delimiter or char != ":":
                raise Malformed("a colon is expected")
            source.position += 1
        else:
            key, _ = yield from header(source, delimiters(":"), _KEY_SHAPE)
        write(json.dumps(key, ensure_ascii=False) + ": ")

    def _scalar(self, source: Source, write: Write) -> Reader[None]:
        escape = delimiters(self.escape)
        if (yield from source.literal(escape)):
            write('"')
            if not (yield from source.until(escape, lambda text: write(_quoted(text)))):
                raise Malformed("the text ends")
            write('"')
            return
        atom, _ = yield from gather(lambda part: source.match(_ATOM, part))
        if atom not in _LITERALS and not NUMBER.fullmatch(atom):
            raise Malformed(f"'{atom[:40]}' is no value")
        write(atom)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
