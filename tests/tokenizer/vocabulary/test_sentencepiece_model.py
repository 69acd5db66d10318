"""SentencePiece vocabularies as tokenizer.json."""

from __future__ import annotations

import pytest

from baton_tokenizer.detokenize import Alphabet, decode
from baton_tokenizer.vocabulary.sentencepiece_model import Pieces, TokenType
from baton_tokenizer.vocabulary.vocabulary import Source, TokenizerVocabulary, build

TOKENS = ("<unk>", "<s>", "<t>", "▁", "a", "b", "ab", "▁a", *(f"<0x{i:02X}>" for i in range(256)))
TYPES = (2, 3, 4, *[1] * 5, *[6] * 256)
SCORES = (0.0, 0.0, 0.0, -3.0, -4.0, -5.0, -1.0, -2.0, *[0.0] * 256)


def vocab(pieces: Pieces, *, unigram: bool = False) -> TokenizerVocabulary:
    return build(Source(pieces.unigram() if unigram else pieces.bpe(), {}, {}))


def pieces(found: TokenizerVocabulary, text: str) -> list[str]:
    return [TOKENS[i] for i in found.tokenizer.encode(text).ids]


@pytest.mark.parametrize("unigram", [False, True])
@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        ("none", "a<t>a", "a|<t>|a"),
        ("first", "a<t>a", "▁a|<t>|a"),
        ("always", "a<t>a", "▁a|<t>|▁a"),
        ("first", " a", "▁|▁a"),
        ("first", "▁a", "▁|▁a"),
        ("always", " a", "▁|▁a"),
        ("none", " a", "▁a"),
        ("always", "é", "▁|<0xC3>|<0xA9>"),
    ],
)
def test_where_a_space_is_added(prefix: str, text: str, expected: str, unigram: bool) -> None:
    found = vocab(Pieces(TOKENS, TYPES, SCORES, 0, prefix=prefix), unigram=unigram)  # type: ignore[arg-type]
    assert pieces(found, text) == expected.split("|")


@pytest.mark.parametrize("prefix", ["first", "always"])
@pytest.mark.parametrize("text", ["a  a", "  a a   ", "a a"])
def test_spaces_are_squeezed(prefix: str, text: str) -> None:
    found = vocab(Pieces(TOKENS, TYPES, SCORES, 0, prefix=prefix, squeezes=True))  # type: ignore[arg-type]
    assert pieces(found, text) == ["▁a", "▁a"]
    ids = found.tokenizer.encode(text).ids
    assert decode(Alphabet(found), ids, skip_special=True) == "a a"


def test_the_name_of_a_byte_is_text() -> None:
    tokens = (*TOKENS, *"<0x>C3")
    types = (*TYPES, *[1] * 6)
    scores = (*SCORES, *[-9.0] * 6)
    found = vocab(Pieces(tokens, types, scores, 0, prefix="none"), unigram=True)
    assert [tokens[i] for i in found.tokenizer.encode("<0xC3>").ids] == list("<0xC3>")


def test_without_bytes_the_unknown_token_stands_for_all() -> None:
    for unigram in (False, True):
        pieces_ = Pieces(TOKENS, TYPES, SCORES, 0, prefix="none", byte_fallback=False)
        found = vocab(pieces_, unigram=unigram)
        assert pieces(found, "aéé") == ["a", "<unk>"]


def test_types_are_those_of_gguf_and_sentencepiece() -> None:
    assert [t.name for t in TokenType] == [
        *("NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE"),
    ]
