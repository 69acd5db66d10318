"""Lark: builds a grammar in llguidance's dialect, rule by rule."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space of JSON in chat templates."""


def literal(text: str) -> str:
    """An expression that matches exactly one text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def either(expressions: Iterable[str]) -> str:
    """An alternative of expressions."""
    return f"({' | '.join(expressions)})"


def excluding(texts: Sequence[str], pattern: str = "") -> str:
    """An expression for text that contains none of some texts and does not match a pattern."""
    alternatives = "|".join(map(_pattern, texts))
    barred = [f"(?s:.*)({alternatives})(?s:.*)"] * bool(alternatives) + [pattern] * bool(pattern)
    return " & ".join(["/(?s:.*)/", *(f"~/{one}/" for one in barred)])


def listing(required: Sequence[str], optional: Sequence[str], separator: str) -> str:
    """All required items, then any of the optional ones, in this order."""
    between = literal(separator)
    if required or not separator:
        first = f" {between} ".join(required)
        return " ".join([first, *(f"({between} {item})?" for item in optional)])
    tails = (
        " ".join([item, *(f"({between} {later})?" for later in optional[i + 1 :])])
        for i, item in enumerate(optional)
    )
    return f"{either(tails)}?" if optional else ""


class Lark:
    """Rules and terminals with generated names."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def rule(self, expression: str) -> str:
        """Add a rule. Returns its name."""
        return self._add("r", expression)

    def json(self, schema: Any) -> str:
        """Add JSON of a schema that was rewritten for the engine. Returns the name of its rule."""
        return self._add("r", "%json " + json.dumps(schema | {"x-guidance": _COMPACT}))

    def text(self, end: str, least: int = 0, most: int | None = None) -> str:
        """Add any text without the closer, followed by the closer with optional white space.
        Returns an expression.

        A terminal is greedy and would include the beginning of the closer, so the closer must be
        declared as a suffix.
        """
        closer = end.strip()
        before, after = end.split(closer, 1)
        size = f"{{{least},{'' if most is None else most}}}"
        text = f"/(?s:.{size}){_pattern(before)}/ & ~/(?s:.*{_pattern(closer)}.*)/"
        return f"{self._add(f'r[suffix={literal(closer)}]', text)} {literal(after)}"

    def until(self, closer: str, without: Sequence[str] = (), outside: str = "") -> str:
        """Add any text up to and including a closer; see `excluding`. Returns the name of its
        rule."""
        return self._add(f"r[suffix={literal(closer)}]", excluding(without, outside))

    def terminal(self, expression: str) -> str:
        """Add a terminal. Returns its name."""
        return self._add("T", expression)

    def pattern(self, pattern: str) -> str:
        """Add a regular expression. Returns the name of its terminal."""
        return self._add("T", f"/{pattern}/")

    def source(self, start: str) -> str:
        """The grammar."""
        return "\n".join([f"start: {start}", *self._lines]) + "\n"

    def _add(self, kind: str, expression: str) -> str:
        name = f"{kind[0]}{len(self._lines)}"
        self._lines.append(f"{name}{kind[1:]}: {expression or literal('')}")
        return name


def _pattern(text: str) -> str:
    return "".join(f"\\x{{{ord(c):x}}}" if not c.isalnum() else c for c in text)
