"""Merging of output deltas."""

from __future__ import annotations

from array import array

from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.pieces import plain


def test_two_deltas_as_one() -> None:
    entry = TokenLogprob(1, -1.0, 1, ())
    first = OutputDelta(
        0, "a", array("i", [1]), (1,), (entry,), prompt_logprobs=(None,), pieces=plain("a")
    )
    later = OutputDelta(
        0,
        "b",
        array("i", [2, 3]),
        (2, 2),
        (entry, entry),
        reason="stop",
        stop="b",
        pieces=plain("b"),
    )
    both = first.then(later)
    assert both == OutputDelta(
        0,
        "ab",
        array("i", [1, 2, 3]),
        (1, 2, 2),
        (entry,) * 3,
        (None,),
        "stop",
        "b",
        pieces=plain("ab"),
    )
    assert first.text == "a" and list(first.tokens) == [1]
