"""A choice is the sum of its deltas."""

from __future__ import annotations

from array import array

from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import OutputDelta
from baton_gateway.pieces import plain


def test_where_the_text_of_each_token_begins() -> None:
    choice = Choice()
    choice.add(OutputDelta(0, "ab", array("i", [1, 2, 3]), (1, 1, 2)))
    choice.add(OutputDelta(0, "c", array("i", [4]), (3,), reason="stop"))
    assert (choice.text, choice.starts, choice.reason) == ("abc", [0, 1, 1, 2], "stop")
    assert Choice.of(OutputDelta(0, "c", array("i", [4]), (3,)), 2).starts == [2]


def test_content_is_the_text_of_its_pieces() -> None:
    choice = Choice()
    for text in ("a", "", "b"):
        choice.add(OutputDelta(0, text, array("i", [1]), (1,), pieces=plain(text)))
    assert choice.content == choice.text == "ab"
