"""Ranks of tokens as merges."""

from __future__ import annotations

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from baton.checkpoint.byte_tokens import ALPHABET
from baton_tokenizer.vocabulary.bpe_ranks import add_tokens, letters, ranked_spec
from baton_tokenizer.vocabulary.formats.checkpoint_folder import entry
from baton_tokenizer.vocabulary.tokenizer_json import compile_spec

WORD = r"\S+|\s+"


def ranks(*merged: str) -> dict[bytes, int]:
    tokens = [bytes([i]) for i in range(256)] + [token.encode() for token in merged]
    return {token: rank for rank, token in enumerate(tokens)}


@given(st.text("abc", max_size=40))
def test_merges_equal_tiktoken(text: str) -> None:
    known = ranks("bc", "ab", "aa", "abc", "aaab", "aab", "ca", "caa", "bcbc")
    oracle = tiktoken.Encoding("x", pat_str=WORD, mergeable_ranks=known, special_tokens={})
    encoder = compile_spec(add_tokens(ranked_spec(known, [WORD]), []))
    assert encoder.encode(text).ids == oracle.encode(text)


def test_a_word_that_is_a_token_is_that_token() -> None:
    encoder = compile_spec(add_tokens(ranked_spec(ranks("bc", "abc", "ab"), [WORD]), []))
    assert encoder.encode("abc").ids == [257]


@pytest.mark.parametrize("offset", [0, 1000])
def test_ids_begin_at_the_offset(offset: int) -> None:
    encoder = compile_spec(add_tokens(ranked_spec(ranks(), [WORD], offset=offset), []))
    assert encoder.encode("a").ids == [offset + ord("a")]


def test_added_tokens_keep_their_ids() -> None:
    spec = add_tokens(ranked_spec(ranks(), [WORD]), [entry(999, "<x>", special=True)])
    assert compile_spec(spec).encode("a<x>").ids == [ord("a"), 999]


def test_letters_are_the_byte_alphabet() -> None:
    assert bytes(ALPHABET[c] for c in letters(bytes(range(256)))) == bytes(range(256))
