"""Properties of loaded models."""

from __future__ import annotations

from pathlib import Path

import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models


def test_a_tied_head_counts_once(tmp_path: Path) -> None:
    def held(tied: bool) -> int:
        path = tmp_path / str(tied)
        tiny_models.save_checkpoint(path, "LlamaForCausalLM", tie_word_embeddings=tied)
        return load_model(path, BuildContext(torch.device("cpu"), torch.float32)).weight_bytes

    config = tiny_models.tiny_config("LlamaForCausalLM")
    assert held(tied=False) - held(tied=True) == config.vocab_size * config.hidden_size * 4
