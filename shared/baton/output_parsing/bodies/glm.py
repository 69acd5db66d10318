"""Calls of GLM: `<tool_call>NAME`, `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each
argument, `</tool_call>`; with or without newlines between the tags."""

from __future__ import annotations

from dataclasses import dataclass

from baton.output_parsing.bodies.bare_values import BareArguments
from baton.output_parsing.bodies.header import KEY_SHAPE, header, name_header
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, delimiters

_KEY, _END = "<arg_key>", "</tool_call>"
_NEXT = delimiters(_KEY, _END)
_KEY_END = delimiters("</arg_key>")
_VALUE = delimiters("<arg_value>")


@dataclass(frozen=True, slots=True)
class GlmCalls:
    """One call."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the call and its closer."""
        name, found = yield from name_header(source, _NEXT)
        arguments = BareArguments(calls, name)
        while found == _KEY:
            key, _ = yield from header(source, _KEY_END, KEY_SHAPE)
            yield from source.space()
            if not (yield from source.literal(_VALUE)):
                raise Malformed("a value is expected")
            yield from arguments.read(source, key, arguments.types(key), "</arg_value>")
            yield from source.space()
            found = yield from source.literal(_NEXT)
        if not found:
            raise Malformed("an argument or the end of the call is expected")
        arguments.end()
