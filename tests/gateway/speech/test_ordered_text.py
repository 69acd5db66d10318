"""Chunks that are written at the same time, in order."""

from __future__ import annotations

from array import array

from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.speech.ordered_text import OrderedText


def delta(choice: int, text: str, reason: str | None = None) -> OutputDelta:
    logprob = TokenLogprob(choice, -1.0, 1, ())
    return OutputDelta(choice, text, array("i", [choice]), logprobs=(logprob,), reason=reason)


def test_later_chunks_wait() -> None:
    order = OrderedText()
    given = (
        *(delta(1, " c"), delta(0, " "), delta(2, " e", "stop"), delta(0, "a"), delta(1, " d")),
        *(delta(0, " b", "stop"), delta(1, "<|1.00|>", "length")),
    )
    parts = [order.add(one) for one in given]
    assert [part.text for part in parts] == ["", "", "", "a", "", " b c d", " e"]
    assert [len(part.logprobs) for part in parts] == [0, 1, 0, 1, 0, 3, 2]
    assert order.text == "a b c d e"


def test_what_is_said_behind_a_marker() -> None:
    """Chunks are joined by a space, but in scripts that have none."""
    order = OrderedText("<asr>", spaced=True)
    given = (
        *(
            delta(0, "language En"),
            delta(0, "glish<as"),
            delta(0, "r> \n"),
            delta(0, "a b", "stop"),
        ),
        *(delta(1, "language None<asr>", "stop"), delta(2, "c", "stop")),
        *(delta(3, "language Chinese<asr>\u4f60", "stop"), delta(4, "<asr>\u597d", "stop")),
    )
    parts = [order.add(one).text for one in given]
    assert parts == ["", "", "", "a b", "", " c", "\u4f60", "\u597d"]
    assert order.text == "a b c\u4f60\u597d"
