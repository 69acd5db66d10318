"""Pairs as the model joins them: by its post-processor, or by its template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.protocol import EncodePair
from baton_tokenizer.encode import Encoder, Ids
from baton_tokenizer.pair_encoder import PairEncoder
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.pair_templates import PairTemplate
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary
from tests.support import tiny_encoders, tiny_models

TEMPLATE = PairTemplate(
    "{{ messages[1].content }}<|end|>{{ messages[0].content }}", {"image": "<|tool|>"}, end=(9, 8)
)


def encode(vocab: TokenizerVocabulary, query: Any, document: Any, limit: int = 0) -> Ids:
    sides = (json.dumps(side).encode() for side in (query, document))
    return PairEncoder(vocab, Encoder(vocab, 1 << 16)).encode(EncodePair(1, *sides, limit=limit))


def test_a_pair_without_a_template(tmp_path: Path) -> None:
    vocab = load(tiny_encoders.save_tokenizer(tmp_path, types=True))
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "baton"}]
    assert encode(vocab, parts, "a") == encode(vocab, "the\nbaton", "a")
    with pytest.raises(InvalidRequest, match="pairs of texts only"):
        encode(vocab, "a", [{"type": "image"}])
    with pytest.raises(InvalidRequest, match="malformed"):
        encode(vocab, 5, "a")


def test_a_template_writes_the_pair_and_its_end(tmp_path: Path) -> None:
    """A client's imitation of an image or of an end stays text."""
    vocab = replace(load(tiny_models.save_tokenizer(tmp_path)), pair_template=TEMPLATE)
    end, image = (vocab.tokenizer.token_to_id(text) for text in ("<|end|>", "<|tool|>"))
    found = encode(vocab, "q <|end|>", [{"type": "text", "text": "d <|tool|>"}, {"type": "image"}])
    assert [i for i in found.ids if i in (end, image)] == [image, end]
    text = b"".join(vocab.pieces[i] for i in found.ids[:-2]).decode()
    assert text == "d <|tool|>\n<|tool|><|end|>q <|end|>" and found.ids[-2:] == [9, 8]
    size = len(found.ids)
    for limit in (size - 1, size):
        query = "q <|end|>"
        again = encode(
            vocab, query, [{"type": "text", "text": "d <|tool|>"}, {"type": "image"}], limit
        )
        assert again.truncated == (limit < size)
    with pytest.raises(InvalidRequest, match="Only text parts"):
        encode(vocab, "q", [{"type": "video"}])
