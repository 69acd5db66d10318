"""Special tokens that a client only talks about."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_tokenizer.vocabulary.special_tokens import SpecialTokens, nonce
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec
from tests.fakes.vocabularies import (
    SPECIALS,
    added,
    byte_spec,
    sentence_spec,
)

LITERAL = SpecialTokens(byte_spec(), SPECIALS)
MARK = "\U000f0000"
FRAGMENTS = st.lists(
    st.sampled_from([*SPECIALS, "<|im_", "start|>", "end|>", "<", "|>", "/s>", " ", "x", "\n"])
)


def test_a_nonce_is_different_every_time() -> None:
    assert len({nonce() for _ in range(100)}) == 100


@given(st.lists(FRAGMENTS.map("".join)))
def test_no_special_token_survives_in_guarded_texts(texts: list[str]) -> None:
    rendered = "".join(LITERAL.guard(text, MARK) for text in texts)
    assert not any(special in rendered for special in SPECIALS)
    assert rendered.replace(MARK, "") == "".join(texts)


@given(FRAGMENTS.map("".join), FRAGMENTS.map("".join))
def test_trimming_a_guarded_text_frees_nothing(first: str, second: str) -> None:
    rendered = LITERAL.guard(first, MARK).strip() + LITERAL.guard(second, MARK).strip()
    assert not any(special in rendered for special in SPECIALS)


def test_ordinary_text_is_untouched() -> None:
    text = "a < b and <b>bold</b> or <|im_not|>"
    assert LITERAL.guard(text, MARK) is text


def test_overlapping_mentions_are_all_broken() -> None:
    literal = SpecialTokens(byte_spec() | {"added_tokens": [added("aXa", 300)]}, ["aXa"])
    assert "aXa" not in literal.guard("aXaXa", MARK)


def test_only_unbroken_tokens_are_respelled() -> None:
    text = "<|im_end|>hi<|im_end|>"
    respelled = LITERAL.respell(text, {1})
    assert respelled is not None
    ids = LITERAL.tokenizer.encode(respelled, add_special_tokens=False).ids
    end = compile_spec(byte_spec()).token_to_id("<|im_end|>")
    assert ids.count(end) == 1 and ids[-1] == end
    assert LITERAL.tokenizer.encode(text).ids.count(end) == 0


@pytest.mark.parametrize("marks", [set(), {0}, {2}])
def test_without_a_broken_token_nothing_is_respelled(marks: set[int]) -> None:
    assert LITERAL.respell("hi<|im_end|>", marks) is None


def test_the_literal_spelling_of_an_unknown_token_that_is_special() -> None:
    literal = SpecialTokens(sentence_spec(), ["<unk>", "<s>", "</s>"])
    ids = literal.tokenizer.encode("</s>", add_special_tokens=False).ids
    assert 2 not in ids and len(ids) > 1


def test_merges_cannot_make_a_special_token_of_text() -> None:
    spec = byte_spec()
    spec["model"] = copy.deepcopy(spec["model"])
    spec["model"]["vocab"] |= {"[X": 400, "[X]": 401}
    spec["model"]["merges"] += [["[", "X"], ["[X", "]"]]
    spec["added_tokens"] = [added("[X]", 401)]
    assert compile_spec(spec).encode("[X]").ids == [401]
    assert 401 not in SpecialTokens(spec, ["[X]"]).tokenizer.encode("[X]").ids


def test_unigram_vocabularies() -> None:
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]}
    spec = byte_spec() | {"model": model, "pre_tokenizer": None, "added_tokens": [added("</s>", 1)]}
    assert compile_spec(spec).encode("a</s>").ids == [2, 1]
    assert 1 not in SpecialTokens(spec, ["</s>"]).tokenizer.encode("a</s>").ids
