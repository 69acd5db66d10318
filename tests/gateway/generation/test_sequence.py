"""Token log and text delivery of one choice."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import ServerFault
from baton.protocol import Sampling
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import unpack
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import PriorOutput
from baton_gateway.generation.sequence import Sequence
from baton_gateway.pieces import Content

EOS = 2


def _sequence(**fields: Any) -> Sequence:
    given: dict[str, Any] = {
        "handle": 1,
        "request": "r",
        "choice": 0,
        "prompt": PackedTokens.of(range(20)),
        "sampling": Sampling(9, stop_ids=(EOS, 7)),
        "stream": OutputQueue(1),
        "stop_token_ids": (7,),
    }
    return Sequence(**(given | fields))


def _deltas(sequence: Sequence) -> list[OutputDelta]:
    async def main() -> list[OutputDelta]:
        return [await anext(sequence.stream) for _ in range(len(sequence.stream))]

    return asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=40))
def test_log_only_grows_and_never_skips(rows: list[tuple[int, int]]) -> None:
    """Whatever is repeated or reordered, the log is 0, 1, 2, ... or the row is refused."""
    sequence = _sequence()
    for first, count in rows:
        entries = [TokenLogprob(i, 0.0, 1, ()) for i in range(first, first + count)]
        before = len(sequence.log)
        if first > before:
            with pytest.raises(ServerFault):
                sequence.extend(first, array("i", range(first, first + count)), entries)
        else:
            sequence.extend(first, array("i", range(first, first + count)), entries)
        assert list(sequence.log) == list(range(max(before, len(sequence.log))))
        assert [entry.token for entry in sequence.logprobs] == list(sequence.log)


@pytest.mark.parametrize(
    ("tokens", "reason", "include", "visible"),
    [
        ([5, EOS], "stop", False, 1),
        ([5, EOS], "stop", True, 2),
        ([5, EOS], "length", False, 2),
        ([5, EOS], None, False, 2),
        ([5, 6], "stop", False, 2),
        ([], "stop", False, 0),
    ],
)
def test_stop_id_is_counted_but_not_shown(
    tokens: list[int], reason: str | None, include: bool, visible: int
) -> None:
    sequence = _sequence(include_stop=include)
    sequence.extend(0, array("i", tokens), [])
    sequence.reason = reason
    assert sequence.visible == visible


@pytest.mark.parametrize(("last", "stop"), [(EOS, None), (7, 7)])
def test_last_delta(last: int, stop: int | None) -> None:
    sequence = _sequence()
    sequence.extend(0, array("i", [5, last]), [])
    sequence.reason, sequence.end_sent = "stop", True
    sequence.deliver(1, "ab", (2,), None)
    (delta,) = _deltas(sequence)
    assert (list(delta.tokens), delta.text, delta.ends) == ([5, last], "ab", (2, 2))
    assert delta.pieces == (Content("ab"),)
    assert (delta.reason, delta.stop, sequence.ended) == ("stop", stop, True)


def test_answers_that_are_owed_keep_it_open() -> None:
    sequence = _sequence()
    sequence.extend(0, array("i", [5, 6]), [])
    sequence.reason, sequence.end_sent, sequence.awaited = "length", True, 1
    sequence.deliver(1, "a", (1,), None)
    sequence.awaited = 0
    sequence.deliver(2, "b", (2,), None)
    assert [(d.text, d.reason) for d in _deltas(sequence)] == [("a", None), ("b", "length")]


def test_opening_continues_after_what_was_delivered() -> None:
    sequence = _sequence(stops=("x",))
    sequence.extend(0, array("i", [5, 6, 8]), [])
    sequence.sent, sequence.awaited = 3, 1
    sequence.deliver(2, "ab", (1, 2), None)
    sequence.reopen(None)
    assert (sequence.sent, sequence.awaited, sequence.opened) == (2, 0, False)
    opening = sequence.opening()
    assert list(unpack(opening.log)) == [5, 6] and opening.stops == ("x",)
    assert list(unpack(opening.prompt_tail)) == list(range(12, 20))


def test_submission_continues_after_the_log() -> None:
    sequence = _sequence()
    sequence.extend(0, array("i", [5, 6]), [])
    submit = sequence.submission()
    assert list(unpack(submit.log)) == [5, 6] and list(unpack(submit.tokens)) == list(range(20))


def test_a_choice_goes_on_where_it_was_left() -> None:
    past = PriorOutput()
    for tokens, text in (([5, 6], "ab"), ([9], "é")):
        past.add(OutputDelta(0, text, array("i", tokens), cached=3))
    sequence = _sequence()
    sequence.resume_after(past)
    assert list(unpack(sequence.submission().log)) == [5, 6, 9]
    assert list(unpack(sequence.opening().log)) == [5, 6, 9]
    assert (sequence.length, sequence.cached, sequence.ended) == (3, 3, False)
    past.tokens.append(1)
    assert len(sequence.log) == 3, "a copy"
    past.add(OutputDelta(0, "", array("i"), reason="stop"))
    sequence.resume_after(past)
    assert sequence.ended


def test_tokens_of_the_run_before_are_told_from_a_gap() -> None:
    sequence = _sequence(log=array("i", [1, 2]))
    assert not sequence.is_from_previous_run(5), "a gap, which `extend` refuses"
    sequence.renewed = True
    assert sequence.is_from_previous_run(5) and sequence.is_from_previous_run(3)
    assert not sequence.is_from_previous_run(2)
    assert not sequence.is_from_previous_run(5)


@pytest.mark.parametrize(("deadline", "left"), [(None, 0), (12.5, 2500), (9.0, 1)])
def test_what_is_left_of_a_deadline(deadline: float | None, left: int) -> None:
    assert _sequence(deadline=deadline).remaining_ms(10.0) == left
