"""A file of tools.make_random_gguf, which benchmarks run, loads and runs like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from baton_tokenizer.vocabulary.load import load
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support.gguf_vocabulary import save_vocabulary
from tools.make_random_gguf import Shape, save
from tools.random_blocks import TYPES, random_blocks

SHAPE = Shape(width=128, inner=96, layers=1, heads=2, kv_heads=1, vocab=500)
WHOLE_BLOCKS = SHAPE._replace(width=256, inner=256, heads=4)


@pytest.mark.parametrize(("shape", "kind"), [(SHAPE, None), (WHOLE_BLOCKS, "IQ1_M")])
def test_a_random_file_runs(shape: Shape, kind: str | None, driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    save(path, save_vocabulary(tmp_path / "vocabulary.gguf"), shape, kind=kind)
    assert load(path).tokenizer.encode("abc", add_special_tokens=False).tokens == ["ab", "c"]
    loaded = load_model(path, BuildContext(torch.device("cpu"), torch.float32))
    [logits] = driver(loaded, 1).step({0: [1, 2, 499]}).values()
    assert logits.shape == (3, 500) and bool(logits.isfinite().all())


def test_blocks_of_every_type_are_weights_of_the_size_asked_for() -> None:
    for name, kind in TYPES.items():
        blocks = random_blocks(np.random.default_rng(0), (8, 1024), kind, 0.02)
        values = gguf.quants.dequantize(blocks, kind)
        assert values.shape == (8, 1024), name
        assert 0.01 < np.sqrt(np.square(values).mean()) < 0.04, name
        assert abs(values.mean()) < 0.01, name


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="896 columns are no whole blocks of 256 in Q2_K"):
        random_blocks(np.random.default_rng(0), (2, 896), TYPES["Q2_K"], 0.02)
