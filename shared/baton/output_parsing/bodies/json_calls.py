"""Calls that are JSON objects, `{"name": NAME, "arguments": {...}}`: one, several, or an array."""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton.output_parsing.bodies.header import NAME
from baton.output_parsing.bodies.json_value import copy_value, json_string, single_value
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, Write, delimiters, gather

_HARMLESS = {"type", "id", "index", "tool_call_id", "call_id"}
"""Keys besides the name that are not arguments."""
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Objects up to a closer, which may be missing, since JSON ends by itself."""

    closers: tuple[str, ...] = ()
    named_by_tools: bool = False
    """Whether an object without arguments is a call only if it names one of the tools: needed
    without an opener that marks the object as a call."""
    id_pattern: str = ""
    """Selects which ids written by the model are used as the call's id; "" for none."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the calls and the closer after them."""
        if (yield from source.space()) == "[":
            source.position += 1
        while True:
            if (yield from source.space()) != "{":
                raise Malformed("an object is expected")
            yield from _Object(self, source, calls).read()
            if (yield from source.space()) in (",", ";"):
                source.position += 1
            if (yield from source.space()) != "{":
                break
        yield from close(source, self.closers)


def close(source: Source, closers: tuple[str, ...]) -> Reader[None]:
    """Read closers if they are next, including brackets that were not opened before, and the
    beginning of one at which the text was cut off."""
    while (char := (yield from source.space())) and char in "]}":
        source.position += 1
    ends = delimiters(*closers)
    while (yield from source.literal(ends)):
        yield from source.space()
    if source.ended and ends.open(source.text[source.position :]):
        source.position = len(source.text)


class _Object:
    """State of one call while its object is read."""

    def __init__(self, row: JsonCalls, source: Source, calls: Calls) -> None:
        self._row = row
        self._source = source
        self._calls = calls
        self._name = ""
        self._id: str | None = None
        self._arguments: str | None = None
        """Text before the name, or all of it without a name."""
        self._complete = False
        self._strange = False
        """Whether some key could be an argument."""

    def read(self) -> Reader[None]:
        try:
            yield from self._members()
        except Malformed:
            if not (self._complete and self._calls.open):
                raise
        self._finish()

    def _members(self) -> Reader[None]:
        self._source.position += 1
        while (char := (yield from self._source.space())) != "}":
            key = yield from json_string(self._source)
            if (yield from self._source.space()) != ":":
                raise Malformed("a colon is expected")
            self._source.position += 1
            yield from self._source.space()
            yield from self._member(key)
            if (char := (yield from self._source.space())) == ",":
                self._source.position += 1
            elif char != "}":
                raise Malformed("a comma is expected")
        self._source.position += 1

    def _member(self, key: str) -> Reader[None]:
        if key in _NAMES and not self._name:
            yield from self._read_name()
        elif key in _ARGUMENTS and not self._complete:
            yield from self._read_arguments()
            self._complete = True
        elif key == "id" and self._row.id_pattern and (yield from self._source.peek()) == '"':
            text = yield from json_string(self._source)
            self._id = text if re.fullmatch(self._row.id_pattern, text) else None
        else:
            self._note(key)
            yield from copy_value(self._source, len)

    def _note(self, key: str) -> None:
        """Reject a key that is not part of a call. Text that begins with one without an opener is
        an answer in JSON, which must not be held back."""
        self._strange |= key not in _HARMLESS
        if self._strange and self._row.named_by_tools and not self._complete:
            raise Malformed("the object is no call")

    def _read_name(self) -> Reader[None]:
        self._name = yield from json_string(self._source)
        if not NAME.fullmatch(self._name):
            raise Malformed("a function's name is expected")
        if self._complete:
            self._start()

    def _read_arguments(self) -> Reader[None]:
        char = yield from self._source.peek()
        if char == "{" and self._name:
            self._start()
            yield from copy_value(self._source, self._calls.write)
        elif char == '"':
            text = yield from json_string(self._source)
            self._arguments = _quoted_object(text) if text else "{}"
        else:
            text, _ = yield from gather(self._copy)
            if char != "{" and text != "null":
                raise Malformed("the arguments are no object")
            self._arguments = text if char == "{" else "{}"

    def _copy(self, write: Write) -> Reader[None]:
        yield from copy_value(self._source, write)

    def _start(self) -> None:
        self._calls.start(self._name, self._id)

    def _finish(self) -> None:
        if not self._calls.open:
            self._check()
            self._start()
        if self._arguments is not None or not self._complete:
            self._calls.write(self._arguments or "{}")
        self._calls.end()

    def _check(self) -> None:
        """Whether a completely read object is a call."""
        is_tool = self._name in self._calls.tools or not self._row.named_by_tools
        if not self._name or (not self._complete and (self._strange or not is_tool)):
            raise Malformed("the object is no call")


def copy_arguments(
    source: Source, calls: Calls, name: str, call_id: str | None, closers: tuple[str, ...]
) -> Reader[None]:
    """Read the arguments of a call whose name is known: an object, or one in a string, or none."""
    if (char := (yield from source.space())) == "{":
        calls.start(name, call_id)
        yield from copy_value(source, calls.write)
        calls.end()
        return
    arguments = "{}"
    if char == '"':
        text = yield from json_string(source)
        arguments = _quoted_object(text) if text else "{}"
    elif closer := (yield from source.literal(delimiters(*closers))):
        source.position -= len(closer)
    else:
        text, _ = yield from gather(lambda write: copy_value(source, write))
        if text != "null":
            raise Malformed("the arguments are no object")
    calls.add(name, arguments, call_id)


def _quoted_object(text: str) -> str:
    """The object that a model wrote as a JSON string, as JSON."""
    copied = single_value(copy_value, text)
    if copied is None or not copied.startswith("{"):
        raise Malformed("the arguments are no object")
    return copied
