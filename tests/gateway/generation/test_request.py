"""Prior output of a continued choice."""

from __future__ import annotations

from array import array

from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.request import PriorOutput


def test_deltas_are_appended_to_what_came_before() -> None:
    past = PriorOutput()
    past.add(OutputDelta(0, "ab", array("i", [1, 2]), cached=3))
    assert (list(past.tokens), past.length, past.cached, past.ended) == ([1, 2], 2, 3, False)
    past.add(OutputDelta(0, "c", array("i", [3]), reason="stop"))
    assert (list(past.tokens), past.length, past.ended) == ([1, 2, 3], 3, True)
