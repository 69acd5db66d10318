"""Reads one Python literal and passes it on as JSON while it arrives.

Strings with single, double or triple quotes, with Python's escapes; numbers; True, False, None and
their JSON spellings; lists, tuples and dictionaries. Anything else, such as an expression, is
`Malformed`.
"""

from __future__ import annotations

import json
import re

from baton.output_parsing.bodies.json_value import NUMBER, ahead, unicode_escape
from baton.output_parsing.bodies.nested_values import LIST, MAPPING, Bracket, NestedValues
from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Reader, Source, Write, delimiters, gather

_ATOM = re.compile(r"[-+.0-9A-Za-z_]+")
_WHOLE = re.compile(r"([-+]?)(0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+)")
_FLOAT = re.compile(r"([-+]?)([0-9]*)\.?([0-9]*)((?:[eE][-+]?[0-9]+)?)")
_LITERALS = {"True": "true", "False": "false", "None": "null"} | {
    name: name for name in ("true", "false", "null")
}
_QUOTES = delimiters('"""', "'''", '"', "'")
_ESCAPES = {
    **{"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}
_CODES = {"x": 2, "U": 8}
_OCTAL = re.compile(r"[0-7]{1,3}")


def copy_python(source: Source, write: Write) -> Reader[None]:
    """Read a literal, including white space before it, and pass it on as JSON."""
    yield from _VALUES.copy(source, write)


def _key(source: Source, write: Write) -> Reader[None]:
    key, _ = yield from gather(lambda part: _scalar(source, part))
    char = yield from source.space()
    if char != ":":
        raise Malformed("a colon is expected")
    source.position += 1
    write((key if key.startswith('"') else json.dumps(key)) + ": ")


def _scalar(source: Source, write: Write) -> Reader[None]:
    if quote := (yield from source.literal(_QUOTES)):
        yield from _string(source, write, quote)
        return
    atom, _ = yield from gather(lambda part: source.match(_ATOM, part))
    if not atom:
        raise Malformed("a value is expected")
    if (value := _LITERALS.get(atom) or _number(atom)) is None:
        raise Malformed(f"'{atom[:40]}' is no literal")
    write(value)


def _number(atom: str) -> str | None:
    """A number of Python as JSON."""
    if NUMBER.fullmatch(atom):
        return atom
    digits = re.sub(r"(?<=[0-9a-fA-F])_(?=[0-9a-fA-F])", "", atom)
    if match := _WHOLE.fullmatch(digits):
        return match[1].replace("+", "") + str(int(match[2], 0))
    match = _FLOAT.fullmatch(digits)
    if match is None or not (match[2] or match[3]):
        return None
    point = "." + (match[3] or "0") if "." in digits else ""
    number = match[1].replace("+", "") + (match[2] or "0") + point + match[4]
    return number if NUMBER.fullmatch(number) else None


def _string(source: Source, write: Write, quote: str) -> Reader[None]:
    write('"')
    ends = delimiters(quote, "\\")
    while end := (yield from source.until(ends, lambda text: write(_quoted(text)))):
        if end == quote:
            write('"')
            return
        source.position -= 1
        yield from _escape(source, write)
    raise Malformed("the text ends")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _escape(source: Source, write: Write) -> Reader[None]:
    char = yield from ahead(source, 1)
    if char == "u":
        write((yield from unicode_escape(source)))
    elif char in _CODES:
        write((yield from _code(source, _CODES[char])))
    elif char in "01234567":
        write((yield from _octal(source)))
    else:
        source.position += 2
        write(_quoted(_ESCAPES.get(char, "\\" + char)))


def _code(source: Source, size: int) -> Reader[str]:
    for offset in range(2, 2 + size):
        yield from ahead(source, offset)
    digits = source.text[source.position + 2 : source.position + 2 + size]
    source.position += 2 + size
    if not re.fullmatch("[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF:
        raise Malformed("hexadecimal digits are expected in an escape")
    return _quoted(chr(int(digits, 16)))


def _octal(source: Source) -> Reader[str]:
    for offset in (2, 3):
        if (yield from ahead(source, offset)) not in "01234567":
            break
    match = _OCTAL.match(source.text, source.position + 1)
    assert match is not None
    source.position = match.end()
    return _quoted(chr(int(match[0], 8)))


_VALUES = NestedValues(
    {"{": MAPPING, "[": LIST, "(": Bracket("[", ")", "]")}, scalar=_scalar, key=_key
)
