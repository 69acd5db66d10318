"""Completion objects: echo, best candidates, and no tokens at all."""

from __future__ import annotations

from array import array
from typing import Any

from msgspec import UNSET

from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import Started, TokenLogprob
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.streaming.completion_writer import CompletionWriter
from baton_gateway.streaming.head import Head

STARTED = Started((PackedTokens.of([1, 2]),))
MODEL = ModelInfo("m", 99, 100, (0,), frozenset())


def _writer(prompt: str = "", **fields: Any) -> CompletionWriter:
    body = CompletionRequest.model_validate({"model": "m", "prompt": "x"} | fields)
    return CompletionWriter(body, Head("x", 1, "m"), Vocabulary(()), MODEL, [prompt])


def _choice(text: str, logprob: float = 0.0) -> Choice:
    scored = (TokenLogprob(5, logprob, 1, ()),)
    return Choice(text=text, tokens=array("i", [5]), logprobs=scored, reason="stop")


def test_only_the_first_part_has_the_prompt() -> None:
    writer = _writer("hi ", echo=True, return_token_ids=True)
    (first,) = writer.chunks(STARTED, 0, _choice("a"), first=True)
    (later,) = writer.chunks(STARTED, 0, _choice("b"), first=False)
    assert [c.choices[0].text for c in (first, later)] == ["hi a", "b"]
    assert first.choices[0].prompt_token_ids == [1, 2]
    assert later.choices[0].prompt_token_ids is UNSET


def test_the_best_candidates_are_shown_and_all_are_counted() -> None:
    candidates = [_choice("a", -2.0), _choice("b", -1.0), _choice("c", -3.0)]
    found = _writer(n=2, best_of=3).response(STARTED, candidates)
    assert [(c.index, c.text) for c in found.choices] == [(0, "b"), (1, "a")]
    assert found.usage.completion_tokens == 3  # type: ignore[union-attr]


def test_the_token_of_no_tokens_is_dropped() -> None:
    writer = _writer(max_tokens=0)
    found = writer.response(STARTED, [_choice("a")])
    assert (found.choices[0].text, found.choices[0].finish_reason) == ("", "length")
    assert found.usage.completion_tokens == 0  # type: ignore[union-attr]
    assert not writer.plain
