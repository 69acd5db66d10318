"""A file of tools.make_random_gguf, which benchmarks run, loads and runs like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch

from baton_tokenizer.vocabulary.load import load
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tools.make_random_gguf import Shape, save

SHAPE = Shape(width=128, inner=96, layers=1, heads=2, kv_heads=1, vocab=500)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vocabulary(path: Path) -> Path:
    """A file with a vocabulary alone."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", *LETTERS, "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * 27])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_random_file_runs(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    save(path, vocabulary(tmp_path / "vocabulary.gguf"), SHAPE)
    assert load(path).tokenizer.encode("abc", add_special_tokens=False).tokens == ["ab", "c"]
    loaded = load_model(path, BuildContext(torch.device("cpu"), torch.float32))
    [logits] = driver(loaded, 1).step({0: [1, 2, 499]}).values()
    assert logits.shape == (3, 500) and bool(logits.isfinite().all())
