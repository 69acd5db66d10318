"""Translates regular expressions of JSON Schema (ECMA-262) to those of the Rust crate `regex`.

The dialects differ in `.`, white space, escapes and bracket classes: `[a&&b]` matches three
characters in ECMA-262 and none in Rust. Patterns without an equivalent are refused.
https://tc39.es/ecma262/#sec-patterns, https://docs.rs/regex/latest/regex/#syntax
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SPACE = (
    r"\t\n\x{B}\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
)
"""`WhiteSpace` and `LineTerminator` of ECMA-262, within brackets."""
_ANY = r"[^\n\r\x{2028}\x{2029}]"
_ATOM = re.compile(
    r"\\(?:c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|[pP]\{\w+(?:=\w+)?\}|.)"
    r"|\(\?(?::|P?<(?![=!])|.{0,2})|.",
    re.DOTALL,
)
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_SETS = "dDwWsSpP"
_META = frozenset(r"\.+*?()|[]{}^$#&-~/")
_NEEDS_NO_ESCAPE = frozenset("_ \"'%,:;<=>@`!")


class PatternError(ValueError):
    """A regular expression that is invalid or has no equivalent."""


def translate(pattern: str) -> str:
    """Translate a pattern from ECMA-262 to the crate `regex`. Raises `PatternError`."""
    atoms = iter(_ATOM.findall(pattern))
    parts = []
    for atom in atoms:
        if atom == "[":
            parts.append(_class(atoms))
        elif atom == ".":
            parts.append(_ANY)
        elif atom.startswith("(?"):
            parts.append(_group(atom))
        elif atom.startswith("\\"):
            parts.append(_escape(atom))
        else:
            parts.append(atom)
    return "".join(parts)


def _group(atom: str) -> str:
    if atom in ("(?:", "(?<", "(?P<"):
        return atom
    kind = "look-around" if atom[2:3] in "=!<" else "flags"
    raise PatternError(f"{kind} '{atom}' cannot be used in a pattern")


def _escape(atom: str) -> str:
    """An escape outside brackets."""
    if atom[1:] == "s":
        return f"[{_SPACE}]"
    if atom[1:] == "S":
        return f"[^{_SPACE}]"
    if atom[1:2] in tuple(_SETS):
        return _property(atom)
    return _literal(_code(atom))


def _property(atom: str) -> str:
    if atom[1] in "pP" and len(atom) == 2:
        raise PatternError(f"'{atom}' needs a name in braces")
    return atom


def _code(atom: str) -> int:
    """Code point of an atom. Raises `PatternError` unless it is one character."""
    if not atom.startswith("\\"):
        return ord(atom)
    kind, rest = atom[1:2], atom[2:].strip("{}")
    if kind in tuple("xu") and rest:
        return _scalar(int(rest, 16), atom)
    if kind == "c" and rest:
        return ord(rest) % 32
    if kind in _CONTROLS:
        return _CONTROLS[kind]
    if kind and (kind in _META or kind in _NEEDS_NO_ESCAPE):
        return ord(kind)
    named = "back-references and assertions like " if kind.isdigit() or kind in "bBkAzZ" else ""
    raise PatternError(f"{named}'{atom}' cannot be used in a pattern")


def _scalar(code: int, atom: str) -> int:
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise PatternError(f"'{atom}' is no character: write it itself")
    return code


def _literal(code: int) -> str:
    character = chr(code)
    if character in _META:
        return "\\" + character
    return character if character.isprintable() else f"\\x{{{code:X}}}"


def _class(atoms: Iterator[str]) -> str:
    """A class whose `[` has been read, up to its `]`."""
    items = []
    for atom in atoms:
        if atom == "]":
            break
        # `(?:` is not special within brackets.
        items += list(atom) if atom.startswith("(?") else [atom]
        if items[-1] == "]":
            items.pop()
            break
    else:
        raise PatternError("a '[' is never closed")
    negated = items[:1] == ["^"]
    items = items[negated:]
    if not items:
        raise PatternError("an empty class, or a ']' that is not escaped, cannot be used")
    return ("[^" if negated else "[") + "".join(_members(items)) + "]"


def _members(items: list[str]) -> Iterator[str]:
    at = 0
    while at < len(items):
        first, ranged = items[at], at + 2 < len(items) and items[at + 1] == "-"
        if ranged and not (_is_set(first) or _is_set(items[at + 2])):
            low, high = _member_code(first), _member_code(items[at + 2])
            if low > high:
                raise PatternError(f"'{first}-{items[at + 2]}' is no range")
            yield f"{_literal(low)}-{_literal(high)}"
            at += 3
        else:
            yield _set(first) if _is_set(first) else _literal(_member_code(first))
            at += 1


def _is_set(atom: str) -> bool:
    return atom.startswith("\\") and atom[1:2] in tuple(_SETS)


def _set(atom: str) -> str:
    if atom[1:] == "s":
        return _SPACE
    return f"[^{_SPACE}]" if atom[1:] == "S" else _property(atom)


def _member_code(atom: str) -> int:
    """Within brackets `\\b` is a backspace."""
    return 8 if atom == "\\b" else _code(atom)
