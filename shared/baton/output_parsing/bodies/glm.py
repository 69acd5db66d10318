"""Calls of GLM: `<tool_call>NAME`, `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each
argument, `</tool_call>`; with or without newlines between the tags. Hunyuan 3 writes `<tool_sep>`
after the name, and calls in a block."""

from __future__ import annotations

from dataclasses import dataclass

from baton.output_parsing.bodies.bare_values import BareArguments
from baton.output_parsing.bodies.header import KEY_SHAPE, header, name_header
from baton.output_parsing.bodies.json_calls import close
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, delimiters

_CALL, _KEY, _END, _SEPARATOR = "<tool_call>", "<arg_key>", "</tool_call>", "<tool_sep>"
_BEHIND_NAME = delimiters(_KEY, _END, _SEPARATOR)
_NEXT = delimiters(_KEY, _END)
_KEY_END = delimiters("</arg_key>")
_VALUE = delimiters("<arg_value>")


@dataclass(frozen=True, slots=True)
class GlmCalls:
    """One call, or those of a block."""

    block_closers: tuple[str, ...] = ()
    """Closer of a block; empty if there is one call only."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the calls and the closers after them."""
        call = delimiters(_CALL)
        if opener != _CALL:
            yield from source.space()
            if not (yield from source.literal(call)):
                raise Malformed("a call is expected")
        while True:
            yield from _call(source, calls)
            yield from source.space()
            if not self.block_closers or not (yield from source.literal(call)):
                break
        yield from close(source, self.block_closers)


def _call(source: Source, calls: Calls) -> Reader[None]:
    name, delimiter = yield from name_header(source, _BEHIND_NAME)
    if delimiter == _SEPARATOR:
        yield from source.space()
        delimiter = yield from source.literal(_NEXT)
    arguments = BareArguments(calls, name)
    while delimiter == _KEY:
        yield from _argument(source, arguments)
        yield from source.space()
        delimiter = yield from source.literal(_NEXT)
    if not delimiter:
        raise Malformed("an argument or the end of the call is expected")
    arguments.end()


def _argument(source: Source, arguments: BareArguments) -> Reader[None]:
    key, _ = yield from header(source, _KEY_END, KEY_SHAPE)
    yield from source.space()
    if not (yield from source.literal(_VALUE)):
        raise Malformed("a value is expected")
    yield from arguments.read(source, key, arguments.types(key), "</arg_value>")
