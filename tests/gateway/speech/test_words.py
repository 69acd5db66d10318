"""Words against those of transformers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from baton_gateway.speech.words import split_words


def combined(pieces: list[bytes], language: str) -> list[tuple[str, int, int]]:
    """By transformers, of a vocabulary with these tokens."""
    decoder = SimpleNamespace(
        decode=lambda ids, **_: b"".join(pieces[i] for i in ids).decode("utf-8", "replace"),
        eos_token_id=len(pieces),
    )
    words, _, indices = _combine_tokens_into_words(decoder, list(range(len(pieces))), language)
    return [(word, own[0], own[-1]) for word, own in zip(words, indices, strict=True)]


@pytest.mark.row("F18.18")
def test_words_are_those_of_transformers() -> None:
    euro, kana = "\u20ac".encode(), "\u3053\u3093".encode()
    for language, name, pieces in (
        ("en", "english", [b" The", b" relay", b" run", b"ner", b" (", b"first", b")", b"."]),
        ("en", "english", b"And| so|,| | -|well|?|!| \"| on".split(b"|")),
        ("en", "english", [b" 5", euro[:1], euro[1:], b" \xff", b"a\n", b" end", euro[:2]]),
        ("en", "english", [b" next", euro[:1], b" next", b" ", b"end"]),
        ("de", "german", [b" Gr", b"\xc3", b"\xbc\xc3", b"\x9fe", b" an", b"..", b" alle"]),
        ("ja", "japanese", [kana[:3], kana[3:4], kana[4:], "\u3002".encode(), b"A", b"B"]),
        ("en", "english", []),
        ("en", "english", [b" ("]),
    ):  # fmt: skip
        found = [tuple(word) for word in split_words(pieces, language)]
        assert found == combined(pieces, name), pieces
