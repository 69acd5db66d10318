"""Texts around image tokens."""

from __future__ import annotations

from pathlib import Path

import gguf
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


def test_marks_are_spelled_with_the_vocabulary_of_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_token_list(["<im", "<image>", "ĊĊ", "Ċ", "▁of", "a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert encode(file, "\n\n<image>\n of") == [2, 1, 3, 4]
    with pytest.raises(ModelError, match="no token for 'x'"):
        encode(file, "ax")
