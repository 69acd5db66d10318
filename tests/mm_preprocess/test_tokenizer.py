"""Texts around image tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from baton.errors import ModelError
from baton_mm_preprocess.tokenizer import encode


def test_no_token_begins_a_prompt(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        encode(tmp_path, "a")
    tokenizer = Tokenizer(WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
    tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert encode(tmp_path, "a") == [0]
