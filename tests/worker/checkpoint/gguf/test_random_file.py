"""A file of tools.make_random_gguf, which benchmarks run, loads and runs like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from baton_tokenizer.vocabulary.load import load
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support.gguf_vocabulary import save_vocabulary
from tools.make_random_gguf import Shape, save

SHAPE = Shape(width=128, inner=96, layers=1, heads=2, kv_heads=1, vocab=500)


def test_a_random_file_runs(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    save(path, save_vocabulary(tmp_path / "vocabulary.gguf"), SHAPE)
    assert load(path).tokenizer.encode("abc", add_special_tokens=False).tokens == ["ab", "c"]
    loaded = load_model(path, BuildContext(torch.device("cpu"), torch.float32))
    [logits] = driver(loaded, 1).step({0: [1, 2, 499]}).values()
    assert logits.shape == (3, 500) and bool(logits.isfinite().all())
