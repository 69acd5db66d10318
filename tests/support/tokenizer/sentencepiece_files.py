"""SentencePiece files made on the spot."""

from __future__ import annotations

import unicodedata
from functools import cache
from io import BytesIO
from typing import Any

import sentencepiece

from tests.support.nasty_texts import prose

KINDS = {
    "bpe": {"model_type": "bpe", "byte_fallback": True},
    "bpe-plain": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "bpe-unknown": {"model_type": "bpe", "add_dummy_prefix": False},
    "unigram": {
        "model_type": "unigram",
        "byte_fallback": True,
        "hard_vocab_limit": False,
        "required_chars": "<0xA>",
    },
    "unigram-unknown": {
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc_cf",
        "hard_vocab_limit": False,
    },
}


@cache
def trained(kind: str, **options: Any) -> bytes:
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(prose(300)),
        model_writer=model,
        minloglevel=2,
        **{"vocab_size": 60 if "unknown" in kind else 350, **KINDS[kind], **options},
    )
    return model.getvalue()


def plain(text: str) -> bool:
    """Whether no character has combining marks, see `VocabularyBytes.charsmap`."""
    joined = "\u200d\ufe0f\u3099゙ﾞ"
    return not any(unicodedata.category(c).startswith("M") or c in joined for c in text)
