"""Calls whose arguments are tags with plain text: `<function=NAME><parameter=KEY>VALUE...`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton.output_parsing.bodies.bare_values import NOT_TEXT, BareArguments
from baton.output_parsing.bodies.header import KEY_SHAPE, header, name_header
from baton.output_parsing.bodies.json_calls import close
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, delimiters

_ATTRIBUTES = re.compile(r"[^<>]{0,256}")


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Functions of a block, up to its closer."""

    function: tuple[str, str, str]
    """Text before and after the name, and the closing tag. After a quote, attributes may follow up
    to `>`."""
    parameter: tuple[str, str, str]
    """The same for an argument."""
    closers: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Optional text before and after a function."""
    newlines: str = ""
    """Newlines to strip from a value: see `BareArguments.read`."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the functions and the closer of the block."""
        begin = delimiters(self.function[0])
        if opener != self.function[0]:
            yield from self._skip(source)
            if not (yield from source.literal(begin)):
                raise Malformed("a function is expected")
        while True:
            yield from self._function(source, calls)
            yield from self._skip(source)
            if not (yield from source.literal(begin)):
                break
        yield from close(source, self.closers)

    def _skip(self, source: Source) -> Reader[None]:
        yield from source.space()
        while (yield from source.literal(delimiters(*self.skipped))):
            yield from source.space()

    def _function(self, source: Source, calls: Calls) -> Reader[None]:
        name, delimiter = yield from name_header(source, delimiters(self.function[1]))
        yield from _attributes(source, delimiter)
        arguments = BareArguments(calls, name)
        parameter, end = self.parameter[0], self.function[2]
        while True:
            yield from source.space()
            delimiter = yield from source.literal(delimiters(parameter, end, *self.closers))
            if delimiter != parameter:
                break
            yield from self._argument(source, arguments)
        if not delimiter:
            raise Malformed("an argument or the end of the function is expected")
        if delimiter != end:
            source.position -= len(delimiter)
        arguments.end()

    def _argument(self, source: Source, arguments: BareArguments) -> Reader[None]:
        key, delimiter = yield from header(source, delimiters(self.parameter[1]), KEY_SHAPE)
        attributes = yield from _attributes(source, delimiter)
        types = arguments.types(key)
        if 'string="true"' in attributes:
            types = frozenset({"string"})
        elif 'string="false"' in attributes:
            types = (types - {"string"}) or NOT_TEXT
        yield from arguments.read(source, key, types, self.parameter[2], self.newlines)


def _attributes(source: Source, end: str) -> Reader[str]:
    if end != '"':
        return ""
    attributes, _ = yield from header(source, delimiters(">"), _ATTRIBUTES)
    return attributes
