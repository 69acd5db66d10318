from __future__ import annotations

import pytest

from baton.output_parsing.bodies.header import KEY_SHAPE, header, name_header
from baton.output_parsing.calls import Malformed
from baton.output_parsing.source import Reader, Source, delimiters


def read(reader: Reader[tuple[str, str]]) -> tuple[str, str]:
    try:
        next(reader)
    except StopIteration as stop:
        name, found = stop.value
        return str(name), str(found)
    raise AssertionError("it waits")


def source(text: str) -> Source:
    made = Source()
    made.append(text)
    made.ended = True
    return made


def test_a_name_up_to_a_delimiter() -> None:
    assert read(name_header(source("\n a.b-c_1 \n<x>"), delimiters("<x>"))) == ("a.b-c_1", "<x>")


def test_prose_is_no_name() -> None:
    for text in ("two words<x>", "<x>", "{<x>", "a" * 300 + "<x>"):
        with pytest.raises(Malformed):
            read(name_header(source(text), delimiters("<x>")))
    with pytest.raises(Malformed):
        read(name_header(source("name"), delimiters("<x>")))


def test_prose_is_given_up_before_the_delimiter() -> None:
    waiting = Source()
    reader = name_header(waiting, delimiters("<x>"))
    waiting.append(" name")
    next(reader)
    waiting.append(" and")
    with pytest.raises(Malformed):
        next(reader)


def test_a_key_may_have_spaces() -> None:
    assert read(header(source("a key>"), delimiters(">"), KEY_SHAPE)) == ("a key", ">")
