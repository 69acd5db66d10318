"""Ids to text, token by token."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from baton_tokenizer.detokenize import Alphabet, DetokenizeStream, decode
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary
from tests.fakes.vocabularies import byte_vocab, sentence_vocab

BYTES, SENTENCES = byte_vocab(), sentence_vocab()
BYTE_ALPHABET, SENTENCE_ALPHABET = Alphabet(BYTES), Alphabet(SENTENCES)
IDS = st.lists(st.integers(-2, 300), max_size=40)


@cache
def alphabet(path: Path) -> tuple[TokenizerVocabulary, Alphabet]:
    vocab = load(path)
    return vocab, Alphabet(vocab)


def stream(alphabet: Alphabet, tokens: list[int], skip_special: bool = False) -> list[str]:
    state = DetokenizeStream(alphabet, skip_special=skip_special)
    return [*map(state.push, tokens), state.flush()]


def test_a_character_is_whole_or_absent() -> None:
    assert stream(BYTE_ALPHABET, list("é😀".encode())) == ["", "é", "", "", "", "😀", ""]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    assert stream(BYTE_ALPHABET, [*b"a", *"😀".encode()[:3]]) == ["a", "", "", "", "\ufffd"]


def test_an_impossible_byte_is_replaced_at_once() -> None:
    assert stream(BYTE_ALPHABET, [0xFF, *b"a"]) == ["\ufffd", "a", ""]
    assert stream(BYTE_ALPHABET, [0xE4, *b"a"]) == ["", "\ufffda", ""]


@given(st.binary(max_size=60))
def test_bytes_decode_as_python_decodes_them(data: bytes) -> None:
    assert "".join(stream(BYTE_ALPHABET, list(data))) == data.decode(errors="replace")


@given(IDS, st.booleans())
def test_a_stream_equals_the_whole(tokens: list[int], skip: bool) -> None:
    for one in (BYTE_ALPHABET, SENTENCE_ALPHABET):
        assert "".join(stream(one, tokens, skip)) == decode(one, tokens, skip_special=skip)


@given(st.text(max_size=50))
def test_any_text_round_trips(text: str) -> None:
    for vocab, one in ((BYTES, BYTE_ALPHABET), (SENTENCES, SENTENCE_ALPHABET)):
        ids = vocab.literal.tokenizer.encode(text, add_special_tokens=False).ids
        plain = text.replace("▁", " ") if vocab is SENTENCES else text
        assert decode(one, ids, skip_special=True) == plain


def test_special_tokens_are_silent_or_shown() -> None:
    end = BYTES.tokenizer.token_to_id("<|im_end|>")
    tokens = [*b"a", 0xC3, end, 0xA9]
    assert decode(BYTE_ALPHABET, tokens, skip_special=True) == "aé"
    assert decode(BYTE_ALPHABET, tokens, skip_special=False) == "a\ufffd<|im_end|>\ufffd"


def test_ids_outside_of_the_vocabulary_are_silent() -> None:
    assert decode(BYTE_ALPHABET, [-1, 97, 1 << 30], skip_special=False) == "a"


def test_the_first_space_of_a_sentencepiece_text_is_dropped_once() -> None:
    hello = SENTENCES.tokenizer.token_to_id("▁hello")
    assert stream(SENTENCE_ALPHABET, [hello, hello]) == ["hello", " hello", ""]
    assert decode(SENTENCE_ALPHABET, [1, hello], skip_special=True) == "hello"
    assert decode(SENTENCE_ALPHABET, [1, hello], skip_special=False) == "<s> hello"


def test_after_a_prompt_the_first_space_is_kept() -> None:
    hello = SENTENCES.tokenizer.token_to_id("▁hello")
    after_text = DetokenizeStream(SENTENCE_ALPHABET, skip_special=True, prompt_tail=[1, hello])
    assert after_text.push(hello) == " hello"
    after_bos = DetokenizeStream(SENTENCE_ALPHABET, skip_special=True, prompt_tail=[1])
    assert after_bos.push(hello) == "hello"


def test_a_character_that_the_prompt_began_is_finished() -> None:
    state = DetokenizeStream(BYTE_ALPHABET, skip_special=True, prompt_tail=[0xC3])
    assert state.push(0xA9) == "é"


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(tokens=st.lists(st.integers(259, 511), max_size=30))
def test_equals_the_library_on_a_real_sentencepiece_vocabulary(
    tokens: list[int], stories: Path
) -> None:
    reference = Tokenizer.from_file(str(stories / "tokenizer.json"))
    _, ours = alphabet(stories)
    assert decode(ours, tokens, skip_special=True) == reference.decode(tokens)


@settings(suppress_health_check=list(HealthCheck), deadline=None)
@given(tokens=st.lists(st.integers(0, 49151), max_size=30), skip=st.booleans())
def test_equals_the_library_on_a_real_byte_level_vocabulary(
    tokens: list[int], skip: bool, smollm2: Path
) -> None:
    vocab, ours = alphabet(smollm2)
    theirs = vocab.tokenizer.decode(tokens, skip_special_tokens=skip)
    assert decode(ours, tokens, skip_special=skip) == theirs


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦 x", "e\u0301\u200b", "🇨🇭", "नमस्ते", "a\r\n\tb"])
def test_clusters_and_scripts_stream_through_a_real_vocabulary(text: str, smollm2: Path) -> None:
    vocab, ours = alphabet(smollm2)
    pieces = stream(ours, vocab.tokenizer.encode(text).ids)
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
