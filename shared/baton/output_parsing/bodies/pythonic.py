"""Calls in Python syntax: `NAME(KEY=VALUE, ...)`, in a list or one per line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from baton.output_parsing.bodies.header import header
from baton.output_parsing.bodies.json_calls import close
from baton.output_parsing.bodies.python_value import copy_python
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, delimiters

_NAME_SHAPE = re.compile(r"\s*(?:[^\W\d][\w.-]{0,255})?\s{0,8}")
_KEY_SHAPE = re.compile(r"\s*(?:[^\W\d]\w{0,255})?\s{0,8}")


@dataclass(frozen=True, slots=True)
class PythonicCalls:
    """Calls in brackets, or one after the other, up to a closer."""

    closers: tuple[str, ...] = ()
    brackets: bool = True
    """Whether the calls are a list. Otherwise brackets are optional."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read the calls and the closer after them."""
        char = yield from source.space()
        if listed := char == "[":
            source.position += 1
        elif self.brackets:
            raise Malformed("a list is expected")
        while True:
            yield from _Call(source, calls).read()
            if comma := (yield from source.space()) == ",":
                source.position += 1
            char = yield from source.space()
            if not (char.isalpha() or char == "_") or (listed and not comma):
                break
        yield from close(source, self.closers)


class _Call:
    """Read one call. It starts with its first value, so an expression remains text."""

    def __init__(self, source: Source, calls: Calls) -> None:
        self._source = source
        self._calls = calls
        self._name = ""
        self._before = ""
        """Written before the next JSON."""

    def read(self) -> Reader[None]:
        source = self._source
        self._name, _ = yield from header(source, delimiters("("), _NAME_SHAPE)
        if not self._name:
            raise Malformed("a function's name is expected")
        while (char := (yield from source.space())) != ")":
            yield from self._argument()
            if (char := (yield from source.space())) == ",":
                source.position += 1
            elif char != ")":
                raise Malformed("a comma or a closing bracket is expected")
        source.position += 1
        self._write("}" if self._calls.open else "{}")
        self._calls.end()

    def _argument(self) -> Reader[None]:
        key, _ = yield from header(self._source, delimiters("="), _KEY_SHAPE)
        if not key:
            raise Malformed("an argument's name is expected")
        self._before = ("{", ", ")[self._calls.open] + json.dumps(key, ensure_ascii=False) + ": "
        yield from copy_python(self._source, self._write)

    def _write(self, text: str) -> None:
        if not self._calls.open:
            self._calls.start(self._name)
        self._calls.write(self._before + text)
        self._before = ""
