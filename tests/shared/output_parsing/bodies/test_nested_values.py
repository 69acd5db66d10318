"""Nested values with brackets and scalars of a format's own."""

from __future__ import annotations

import re

import pytest

from baton.output_parsing.bodies.nested_values import MAPPING, Bracket, NestedValues
from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Reader, Source, Write, gather

DIGITS = re.compile("[0-9]+")


def key(source: Source, write: Write) -> Reader[None]:
    name, _ = yield from gather(lambda part: source.match(DIGITS, part))
    if (yield from source.space()) != "=":
        raise Malformed("an equals sign is expected")
    source.position += 1
    write(f'"{name}": ')


def scalar(source: Source, write: Write) -> Reader[None]:
    digits, _ = yield from gather(lambda part: source.match(DIGITS, part))
    write(digits)
    if not digits:
        raise Malformed("a number is expected")


VALUES = NestedValues({"<": MAPPING._replace(closer=">"), "(": Bracket("[", ")", "]")}, scalar, key)


def copied(text: str) -> tuple[str, str]:
    """What is written, and what is left."""
    source, parts = Source(), list[str]()
    source.append(text)
    source.ended = True
    for _ in VALUES.copy(source, parts.append):
        pass
    return "".join(parts), source.text[source.position :]


def test_brackets_become_those_of_json_and_what_follows_is_left() -> None:
    for text, found in (
        (" 7 8", ("7", " 8")),
        ("(1, 2 ,(3,),())x", ("[1, 2, [3], []]", "x")),
        ("<1= (2), 3 =<>,>", ('{"1": [2], "3": {}}', "")),
    ):
        assert copied(text) == found, text


def test_anything_else_is_malformed() -> None:
    for text in ("(1 2)", "(,)", "<1 2>", "(1", "[1]", "<1=2)"):
        with pytest.raises(Malformed):
            copied(text)
