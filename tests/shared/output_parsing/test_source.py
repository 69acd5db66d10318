from __future__ import annotations

import re

from baton.output_parsing.source import Delimiters, Reader, Source, delimiters, gather


def fed(*parts: str) -> Source:
    source = Source()
    for part in parts:
        source.append(part)
    source.ended = True
    return source


def finished(reader: Reader[str]) -> str:
    try:
        next(reader)
    except StopIteration as stop:
        return str(stop.value)
    raise AssertionError("it waits")


def test_the_first_delimiter_is_found_and_of_two_the_longest() -> None:
    wanted = Delimiters(["<a>", "<a>b", "<c>"])
    assert wanted.find("x<c><a>", 0) == (1, "<c>")
    assert wanted.find("x<a>b", 0) == (1, "<a>b")
    assert wanted.find("xyz<", 0) == (3, None)
    assert wanted.find("x<y", 0) == (3, None)
    assert wanted.open("<a>") and not wanted.open("<a>b") and not wanted.open("<b")


def test_no_delimiters_match_nothing() -> None:
    assert Delimiters([]).find("abc", 0) == (3, None)


def test_until_passes_text_on_as_soon_as_it_can_be_no_delimiter() -> None:
    source, seen = Source(), list[str]()
    reader = source.until(delimiters("</think>"), seen.append)
    for part, expected in (("ab</th", "ab"), ("x", "ab</thx"), ("</think", "ab</thx")):
        source.append(part)
        next(reader)
        assert "".join(seen) == expected
    source.append(">c")
    assert finished(reader) == "</think>" and source.text[source.position :] == "c"


def test_until_waits_for_the_longer_delimiter() -> None:
    source, seen = Source(), list[str]()
    reader = source.until(delimiters("```", "```json"), seen.append)
    source.append("```js")
    next(reader)
    source.append("x")
    assert finished(reader) == "```" and source.position == 3


def test_the_end_gives_up_waiting() -> None:
    source, seen = fed("a</th"), list[str]()
    assert finished(source.until(delimiters("</think>"), seen.append)) == ""
    assert "".join(seen) == "a</th"
    assert finished(fed("").peek()) == "" and finished(fed(" \n").space()) == ""


def test_a_literal_is_read_only_where_it_is_next() -> None:
    source = fed("<a><b>")
    assert finished(source.literal(delimiters("<b>"))) == "" and source.position == 0
    assert finished(source.literal(delimiters("<a>", "<b>"))) == "<a>" and source.position == 3


def test_rewind_goes_back_over_appended_text() -> None:
    source = fed("xy<a>")
    source.position = 5
    source.mark(3)
    source.append("bc")
    assert source.text == "<a>bc"
    source.position = 5
    source.append("d")
    source.rewind()
    assert source.text[source.position :] == "<a>bcd"


def test_what_was_read_is_dropped() -> None:
    source = fed("abc")
    source.position = 3
    source.mark()
    source.release()
    source.append("d")
    assert source.text == "d" and source.position == 0


def test_match_and_gather() -> None:
    source = Source()
    reader = gather(lambda write: source.match(re.compile("[0-9]+"), write))
    source.append("12")
    next(reader)
    source.append("3x")
    assert finished(reader) == str(("123", None))
