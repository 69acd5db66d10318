"""Reads one JSON value and passes it on while it arrives.

The output is valid JSON for any input, or `Malformed` is raised. Unambiguous errors are repaired:
raw control characters in strings, `\\'`, a comma before a closing bracket, and Python's True, False
and None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Reader, Source, Write, gather

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ATOM = re.compile(r"[-+.0-9A-Za-z_]+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SECOND = re.compile(r"(?:\\(?:u(?:[dD][c-fC-F]?)?)?)?")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_LITERALS = {name: name for name in ("true", "false", "null")} | {
    "True": "true",
    "False": "false",
    "None": "null",
}
_OPEN = {"{": "}", "[": "]"}


def json_string(source: Source) -> Reader[str]:
    """Read a string, quotes included. Returns its value."""
    text, _ = yield from gather(lambda write: copy_string(source, write))
    value = json.loads(text)
    assert isinstance(value, str)
    return value


def copy_string(source: Source, write: Write) -> Reader[None]:
    """Read a string, including quotes, and pass it on while it arrives."""
    if (yield from source.peek()) != '"':
        raise Malformed("a string is expected")
    source.position += 1
    write('"')
    while (yield from source.more()):
        match = _PLAIN.match(source.text, source.position)
        if match is not None:
            source.position = match.end()
            write(match[0])
            continue
        char = source.text[source.position]
        if char == "\\":
            yield from _escape(source, write)
            continue
        source.position += 1
        write(char if char == '"' else json.dumps(char)[1:-1])
        if char == '"':
            return
    raise Malformed("the text ends")


def _escape(source: Source, write: Write) -> Reader[None]:
    char = yield from ahead(source, 1)
    if char == "u":
        write((yield from unicode_escape(source)))
    elif char in '"\\/bfnrt':
        source.position += 2
        write("\\" + char)
    elif char == "'":
        source.position += 2
        write("'")
    else:
        raise Malformed(f"the escape '\\{char}' does not exist in JSON")


def unicode_escape(source: Source) -> Reader[str]:
    """A `\\uXXXX`, and the second one if the first is half of a pair."""
    for i in range(2, 6):
        yield from ahead(source, i)
    text, start = source.text, source.position
    if not _HEX.fullmatch(text, start + 2, start + 6):
        raise Malformed("an escape of four hexadecimal digits is expected")
    source.position += 6
    escape = text[start : start + 6]
    if "d800" <= escape[2:].lower() <= "dbff":
        escape += yield from _second_half(source)
    return escape


def _second_half(source: Source) -> Reader[str]:
    """The escape of a low surrogate if it is next, else ""."""
    while _SECOND.fullmatch(source.text[source.position : source.position + 4]):
        if len(source.text) - source.position >= 4:
            return (yield from unicode_escape(source))
        if source.ended:
            break
        yield
    return ""


def ahead(source: Source, offset: int) -> Reader[str]:
    """The unread character at an offset."""
    while source.position + offset >= len(source.text):
        if source.ended:
            raise Malformed("the text ends")
        yield
    return source.text[source.position + offset]


def copy_value(source: Source, write: Write) -> Reader[None]:
    """Read a value, including white space before it, and pass it on while it arrives."""
    yield from source.space()
    closers: list[str] = []
    while True:
        fresh = (char := (yield from source.peek())) in _OPEN
        if fresh:
            source.position += 1
            write(char)
            closers.append(_OPEN[char])
        else:
            yield from _scalar(source, write)
        if not (yield from _closed(source, write, closers, fresh)):
            return


def _closed(source: Source, write: Write, closers: list[str], fresh: bool) -> Reader[bool]:
    """Read closing brackets and the separator of the next item. Returns whether there is one."""
    while closers:
        char = yield from source.space(write)
        comma = ""
        if char == "," and not fresh:
            source.position += 1
            comma, char = yield from gather(source.space)
            comma = "," + comma
        if char == closers[-1]:
            source.position += 1
            write(closers.pop())
            fresh = False
        elif comma or fresh:
            write(comma)
            if closers[-1] == "}":
                yield from _key(source, write)
            return True
        else:
            raise Malformed("a comma or a closing bracket is expected")
    return False


def _key(source: Source, write: Write) -> Reader[None]:
    yield from copy_string(source, write)
    char = yield from source.space()
    if char != ":":
        raise Malformed("a colon is expected")
    source.position += 1
    write(":")
    yield from source.space(write)


def _scalar(source: Source, write: Write) -> Reader[None]:
    char = yield from source.peek()
    if char == '"':
        yield from copy_string(source, write)
        return
    atom, _ = yield from gather(lambda part: source.match(_ATOM, part))
    if not atom:
        raise Malformed("a value is expected")
    if not (literal := _LITERALS.get(atom)) and not NUMBER.fullmatch(atom):
        raise Malformed(f"'{atom[:40]}' is no JSON value")
    write(literal or atom)


def single_value(copy: Callable[[Source, Write], Reader[None]], text: str) -> str | None:
    """A text as JSON if it is exactly one value, else None."""
    source, parts = Source(), list[str]()
    source.append(text)
    source.ended = True
    try:
        for _ in copy(source, parts.append):
            raise AssertionError("the source has ended")
    except Malformed:
        return None
    return "".join(parts) if not text[source.position :].strip() else None
