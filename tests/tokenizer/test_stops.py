"""Stop strings across the borders of pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_tokenizer.stops import Stops

TEXT = st.text("ab<|", max_size=30)
STOPS = st.lists(st.text("ab<|", min_size=1, max_size=5), max_size=4)


def feed(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    machine = Stops(stops, include)
    text = "".join(map(machine.push, pieces))
    return text + ("" if machine.matched else machine.flush()), machine.matched


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition: the shortest beginning that ends in a stop string, the longest such stop."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(TEXT, STOPS, st.booleans(), st.lists(st.integers(0, 30)))
def test_any_cutting_gives_what_the_definition_says(
    text: str, stops: list[str], include: bool, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert feed(pieces, stops, include) == expected(text, stops, include)


def test_what_could_become_a_stop_string_is_held_back() -> None:
    stops = Stops(["<end>"])
    assert [stops.push(p) for p in ("a<", "en", "x", "<e")] == ["a", "", "<enx", ""]
    assert stops.flush() == "<e" and stops.flush() == ""


def test_nothing_follows_a_match() -> None:
    stops = Stops(["STOP"])
    assert stops.push("go STOP now") == "go "
    assert stops.matched == "STOP"
    assert stops.push("more") == "" and stops.flush() == ""


def test_the_stop_string_is_included_on_request() -> None:
    assert feed(["one tw", "o three"], ["two"], include=True) == ("one two", "two")


@pytest.mark.parametrize("pieces", [["xabc"], ["x", "a", "b", "c"]])
def test_the_match_that_is_complete_first_wins(pieces: list[str]) -> None:
    assert feed(pieces, ["abc", "b"]) == ("xa", "b")


def test_of_two_complete_at_once_the_longer_wins() -> None:
    assert feed(["xabc"], ["c", "abc"]) == ("x", "abc")


def test_an_empty_stop_string_is_none() -> None:
    assert feed(["abc"], [""]) == ("abc", None)
