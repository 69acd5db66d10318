from __future__ import annotations

import pytest

from baton.output_parsing.calls import Calls, Malformed, mistral_id, openai_id
from baton.output_parsing.output import Output
from baton.output_parsing.pieces import Arguments, CallEnd, CallStart, ParseError
from baton.output_parsing.source import Reader, Source
from baton.output_parsing.tools import Tools


def made() -> tuple[Source, Output, Calls]:
    source, output = Source(), Output()
    source.append("<c>abc")
    source.position = 3
    return source, output, Calls(source, output, Tools())


def run(calls: Calls, body: Reader[None]) -> bool:
    try:
        next(calls.attempt(body, 3))
    except StopIteration as stop:
        return bool(stop.value)
    raise AssertionError("it waits")


def test_before_its_start_a_call_may_turn_out_to_be_text() -> None:
    source, output, calls = made()

    def body() -> Reader[None]:
        source.position += 2
        raise Malformed("no")
        yield

    assert not run(calls, body())
    assert source.position == 0 and output.take() == []


def test_after_its_start_a_fault_is_an_error() -> None:
    source, output, calls = made()

    def body() -> Reader[None]:
        calls.add("f", "{}", "an id")
        calls.start("g")
        source.ended = True
        raise Malformed("no")
        yield

    with pytest.raises(Malformed):
        run(calls, body())
    pieces = output.take()
    assert pieces[:3] == [CallStart(0, "an id", "f"), Arguments(0, "{}"), CallEnd(0)]
    assert isinstance(pieces[-1], ParseError)
    assert (pieces[-1].index, pieces[-1].type) == (1, "incomplete_tool_call")


def test_a_fault_behind_a_call_leaves_the_call() -> None:
    source, _, calls = made()

    def body() -> Reader[None]:
        calls.add("f", "{}")
        source.position += 1
        raise Malformed("no")
        yield

    assert run(calls, body())
    assert source.position == 3 and calls.count == 1


def test_ids() -> None:
    assert openai_id("s", 0) != openai_id("s", 1) != openai_id("t", 1)
    assert len(mistral_id("s", 0)) == 9 and mistral_id("s", 0).isalnum()
    assert openai_id("\ud800", 0).startswith("call_")
