from __future__ import annotations

from baton.output_parsing.output import Output
from baton.output_parsing.pieces import Arguments, CallEnd, Content, Reasoning


def test_adjacent_text_of_a_kind_is_one_piece() -> None:
    output = Output()
    for text in ("a", "b"):
        output.reasoning(text)
    output.content("c")
    output.content("")
    output.arguments(0, "{")
    output.arguments(0, "}")
    output.put(CallEnd(0))
    output.arguments(1, "{}")
    assert output.take() == [
        Reasoning("ab"),
        Content("c"),
        Arguments(0, "{}"),
        CallEnd(0),
        Arguments(1, "{}"),
    ]
    assert output.take() == []
