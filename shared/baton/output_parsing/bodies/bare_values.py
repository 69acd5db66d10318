"""Arguments written as plain text, whose types are given by the tool's JSON schema.

A string is passed on while it arrives. Any other value is short, and read completely; text that
does not match its type becomes a string.
"""

from __future__ import annotations

import json

from baton.output_parsing.bodies.json_value import NUMBER, copy_value, single_value
from baton.output_parsing.bodies.python_value import copy_python
from baton.output_parsing.calls import Calls, Malformed
from baton.output_parsing.source import Reader, Source, delimiters, gather
from baton.output_parsing.tools import Types

_STARTS = {
    "null": "nN",
    "integer": "+-.0123456789",
    "number": "+-.0123456789",
    "boolean": "tTfF",
    "object": "{",
    "array": "[(",
}
"""Characters with which a value of a type may begin."""
NOT_TEXT = frozenset(_STARTS)
"""Types whose values are always JSON."""


class BareArguments:
    """Converts the arguments of one call to a JSON object while their texts are read."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._name = name
        self._separator = "{"

    def types(self, key: str) -> Types:
        """Types that the schema allows for an argument."""
        return self._calls.tools.types(self._name, key)

    def read(
        self, source: Source, key: str, types: Types, closer: str, newlines: str = ""
    ) -> Reader[None]:
        """Read the value of `key` and its closer. `newlines`: newlines around the value to strip;
        "": all; "first": one on each side, if the value begins with one; "pair": one on each side,
        if both exist."""
        self.key(key)
        closers: tuple[str, ...] = (closer,)
        char = yield from source.peek()
        framed = bool(newlines) and char == "\n"
        if framed:
            source.position += 1
            closers = ("\n" + closer, closer)
            char = yield from source.peek()
        textual = "string" in types or not types
        if types == {"string"} or (textual and not _may_be(char, types)):
            yield from self._stream(source, closers, framed and newlines == "pair")
        else:
            text, _ = yield from _until(source, closers)
            self.write(as_json(text, types))

    def key(self, key: str) -> None:
        """Begin the value of `key`. The first one starts the call."""
        if not self._calls.open:
            self._calls.start(self._name)
        self.write(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: ")
        self._separator = ", "

    def write(self, text: str) -> None:
        """Add JSON."""
        self._calls.write(text)

    def end(self) -> None:
        """End the object."""
        if not self._calls.open:
            self._calls.start(self._name)
            self.write("{")
        self.write("}")
        self._calls.end()

    def _stream(self, source: Source, closers: tuple[str, ...], paired: bool) -> Reader[None]:
        if paired:
            text, closer = yield from _until(source, closers)
            self.write(
                json.dumps(text if closer == closers[0] else "\n" + text, ensure_ascii=False)
            )
            return
        self.write('"')
        if not (yield from source.until(delimiters(*closers), self._write_text)):
            raise Malformed("the text ends")
        self.write('"')

    def _write_text(self, text: str) -> None:
        self.write(json.dumps(text, ensure_ascii=False)[1:-1])


def _until(source: Source, closers: tuple[str, ...]) -> Reader[tuple[str, str]]:
    """The text before a closer, and the closer."""
    text, closer = yield from gather(lambda write: source.until(delimiters(*closers), write))
    if not closer:
        raise Malformed("the text ends")
    return text, closer


def _may_be(char: str, types: Types) -> bool:
    """Whether a text that begins so could be another type than a string."""
    return char.isspace() or any(char in _STARTS.get(t, "") for t in types or NOT_TEXT)


def as_json(text: str, types: Types) -> str:
    """A text as JSON of the first type that it matches; without types: JSON if it is valid, else a
    string."""
    bare = text.strip()
    allowed = types or NOT_TEXT
    if bare == "null" and "null" in allowed:
        return bare
    if allowed & {"integer", "number"} and NUMBER.fullmatch(bare):
        return bare
    if "boolean" in allowed and bare.lower() in ("true", "false"):
        return bare.lower()
    container = bare[:1] and bare[0] in ("{" * ("object" in allowed) + "[(" * ("array" in allowed))
    if container:
        copied = single_value(copy_value, bare) or single_value(copy_python, bare)
    else:
        copied = (
            single_value(copy_value, bare) if "string" not in allowed and bare[:1] == '"' else None
        )
    return copied or json.dumps(text, ensure_ascii=False)
