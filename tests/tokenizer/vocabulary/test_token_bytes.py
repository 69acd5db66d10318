"""The bytes that tokens stand for."""

from __future__ import annotations

import pytest
from tokenizers import decoders

from baton.errors import ModelError
from baton_tokenizer.vocabulary.token_bytes import Spelling, spelling


def test_byte_level_tokens() -> None:
    rule = Spelling(byte_level=True)
    assert rule.spell("Ġhello") == b" hello"
    assert rule.spell("Ã©") == "é".encode()
    assert rule.spell("<|a b|>") == b"<|a b|>"  # a space is not in the alphabet: plain text


def test_sentencepiece_tokens() -> None:
    rule = Spelling(space="▁", byte_tokens=True)
    assert rule.spell("▁hello") == b" hello"
    assert rule.spell("<0xE4>") == b"\xe4"
    assert rule.spell("<0xE4") == b"<0xE4"


def test_the_rule_is_read_from_the_decoder() -> None:
    llama = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    assert spelling(llama) == Spelling(space="▁", byte_tokens=True, drops_space=True)
    assert spelling({"type": "ByteLevel"}) == Spelling(byte_level=True)
    never = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}
    assert spelling(never) == Spelling(space="▁")
    assert spelling({"type": "Metaspace", "replacement": "▁"}).drops_space


@pytest.mark.parametrize("tidy", [True, False])
def test_word_pieces_as_the_tokenizers_library_writes_them(tidy: bool) -> None:
    words = [
        "it",
        "'s",
        "un",
        "##believ",
        "##able",
        ",",
        "do",
        "n't",
        "(",
        "no",
        ")",
        "?",
        "#",
        "##",
    ]
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": tidy}
    rule = spelling(decoder)
    assert rule.drops_space
    ours = b"".join(map(rule.spell, words)).decode().removeprefix(" ")
    assert ours == decoders.WordPiece("##", cleanup=tidy).decode(words)


@pytest.mark.parametrize("decoder", [None, {"type": "CTC"}, {"type": "WordPiece"}])
def test_a_decoder_that_does_not_stream_is_refused(decoder: dict[str, str] | None) -> None:
    with pytest.raises(ModelError, match="decoder"):
        spelling(decoder)
