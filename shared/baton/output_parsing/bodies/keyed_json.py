"""Calls of Apertus: an array of objects whose only key is the function, `[{NAME: {...}}, ...]`."""

from __future__ import annotations

from dataclasses import dataclass

from baton.output_parsing.bodies.header import NAME
from baton.output_parsing.bodies.json_calls import close, copy_arguments
from baton.output_parsing.bodies.json_value import json_string
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source


@dataclass(frozen=True, slots=True)
class KeyedJson:
    """The array and its closer."""

    closers: tuple[str, ...]

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the calls and the closer after them."""
        yield from _expect(source, "[")
        while True:
            yield from self._call(source, calls)
            if (yield from source.space()) != ",":
                break
            source.position += 1
        yield from close(source, self.closers)

    def _call(self, source: Source, calls: Calls) -> Reader[None]:
        yield from _expect(source, "{")
        yield from source.space()
        name = yield from json_string(source)
        if not NAME.fullmatch(name):
            raise Malformed("a function's name is expected")
        yield from _expect(source, ":")
        yield from copy_arguments(source, calls, name, None, ())
        if (yield from source.space()) == "}":
            source.position += 1


def _expect(source: Source, char: str) -> Reader[None]:
    if (yield from source.space()) != char:
        raise Malformed(f"'{char}' is expected")
    source.position += 1
