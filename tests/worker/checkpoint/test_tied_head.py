"""Checkpoints whose configs tie the head and that hold one all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.oracles.checkpoints import asked
from tests.support import tiny_models

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def another(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING].flip(0).contiguous()


def equal(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()


def instead(tensors: Tensors) -> None:
    tensors[HEAD] = tensors.pop(EMBEDDING)


@pytest.mark.parametrize(("change", "tied"), [(another, False), (equal, True), (instead, True)])
def test_a_saved_head_is_read_as_transformers_does(
    change: Callable[[Tensors], None], tied: bool, tmp_path: Path, driver: Any
) -> None:
    tiny_models.save_checkpoint(tmp_path, "Qwen2ForCausalLM", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    oracle = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    assert loaded.spec.head.tied == tied
    tokens = list(range(5, 25))
    ours = driver(loaded, 1).step({0: tokens})[0]
    assert (ours - asked(oracle)(tokens)).abs().max() < 1e-3
