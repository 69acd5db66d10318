"""Thinking before constrained output: where it may begin, when it must end, what follows."""

from __future__ import annotations

import random

import numpy as np
import pytest

from baton.protocol import Grammar, Thinking
from baton_worker.structured_output.llguidance import Guidance
from baton_worker.structured_output.matcher import Matcher
from baton_worker.structured_output.vocabulary import Vocabulary

WORDS = (b"</think>", b"<think>", b"hmm", b"k>\n", b"\n\n", b"</th", b"ink>", b'{"a": 1}')
PIECES = (*(bytes([i]) for i in range(256)), *WORDS, b"")
CLOSER, OPENER, HMM, ACROSS, BLANK, HALF, REST, ANSWER, SPECIAL = range(256, 265)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
GUIDANCE = Guidance(Vocabulary(PIECES))


def matcher(
    *,
    kind: str = "json_schema",
    opened: bool = True,
    ids: tuple[int, int] = (-1, -1),
    budget: int = -1,
) -> Matcher:
    thinking = Thinking("<think>", "</think>", opened, *ids, budget)
    return GUIDANCE.compile(Grammar(kind, SCHEMA, thinking=thinking))  # type: ignore[arg-type]


def allowed(at: Matcher) -> set[int]:
    bits = np.unpackbits(at.allowed(), bitorder="little")
    return set(np.flatnonzero(bits[: len(PIECES)]).tolist())


def test_the_constraint_begins_where_the_thinking_ends() -> None:
    at = matcher()
    assert at.accept([HMM, ord("{"), HMM]) and not at.may_end
    assert {HMM, ord("{"), CLOSER} <= allowed(at) and SPECIAL not in allowed(at)
    assert at.accept([CLOSER, BLANK])
    assert ord("{") in allowed(at) and HMM not in allowed(at)
    assert at.accept(list(b'{"a":7}')) and at.may_end and at.over


def test_no_token_reaches_across_the_end_of_thinking() -> None:
    at = matcher()
    assert at.accept(list(b"</thin"))
    assert ACROSS not in allowed(at) and ord("k") in allowed(at)
    assert at.accept(list(b"k>")) and HMM not in allowed(at)
    free = matcher(kind="text")
    assert free.accept(list(b"</thin")) and ACROSS in allowed(free)
    assert free.accept([ACROSS, HMM]) and free.may_end


@pytest.mark.parametrize("ids", [(-1, -1), (OPENER, CLOSER)])
@pytest.mark.parametrize("kind", ["text", "json_schema"])
def test_a_budget_is_exact(kind: str, ids: tuple[int, int]) -> None:
    for budget in (0, 1, 7):
        at = matcher(kind=kind, ids=ids, budget=budget)
        for _ in range(budget):
            assert HMM in allowed(at) and at.accept([HMM])
        assert not at.may_end and HMM not in allowed(at)
        if ids[1] >= 0:
            assert allowed(at) == {CLOSER} and at.forced() == b""
        else:
            assert at.forced() == b"</think>" and {CLOSER, HALF, ord("<")} == allowed(at)
            assert at.accept([HALF]) and {REST, ord("i")} == allowed(at)
            at.back()
        assert at.accept([CLOSER]) and (HMM in allowed(at)) == (kind == "text")


def test_a_budget_that_ends_within_the_closer_lets_it_be_written() -> None:
    at = matcher(budget=3)
    assert at.accept([HMM, HMM, HALF]) and at.forced() == b"ink>"
    assert allowed(at) == {REST, ord("i")} and at.accept([REST, ord("{")])


def test_a_model_may_open_its_thinking_itself() -> None:
    for start in ([OPENER], list(b"<think>")):
        at = matcher(opened=False, budget=1)
        assert at.accept(start) and at.accept([HMM]) and at.forced() == b"</think>"
    straight = matcher(opened=False)
    assert {OPENER, ord("<"), ord("{")} <= allowed(straight) and HMM not in allowed(straight)
    assert straight.accept(list(b'{"a":7}')) and straight.over
    begun = matcher(opened=False)
    assert begun.accept([ord("<")]) and not begun.may_end and ord("{") not in allowed(begun)
    free = matcher(kind="text", opened=False, budget=0)
    assert free.accept([HMM, OPENER, HMM]) and free.may_end


def test_special_tags_are_known_by_their_ids() -> None:
    at = matcher(ids=(-1, SPECIAL), budget=9)
    assert at.accept([HMM]) and SPECIAL in allowed(at)
    assert at.accept([SPECIAL]) and ord("{") in allowed(at) and HMM not in allowed(at)


def test_what_is_not_allowed_is_an_error() -> None:
    at = matcher(budget=1)
    assert at.accept([HMM]) and not at.accept([HMM]) and "thinking" in at.error


@pytest.mark.parametrize("kind", ["text", "json_schema"])
def test_a_sequence_goes_on_from_its_log_anywhere(kind: str) -> None:
    """Failover, preemption and speculation: copies, logs and taken-back tokens agree."""
    for seed in range(40):
        rng = random.Random(seed)
        at = matcher(kind=kind, opened=seed % 2 == 0, budget=rng.randrange(6))
        log: list[int] = []
        while len(log) < 24 and not at.over and not at.error:
            token = rng.choice(sorted(allowed(at)))
            tried = at.copy()
            assert tried.accept([token])
            tried.back()
            assert allowed(tried) == allowed(at)
            assert at.accept([token])
            log.append(token)
        again = matcher(kind=kind, opened=seed % 2 == 0, budget=random.Random(seed).randrange(6))
        assert again.accept(log)
        assert (allowed(again), again.may_end, again.forced()) == (
            allowed(at),
            at.may_end,
            at.forced(),
        )
