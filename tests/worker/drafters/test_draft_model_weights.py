"""A model is loaded beside the target, or refused with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.config import Config
from baton_worker.drafters.draft_model_weights import load_draft_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import WeightsContext
from tests.support import tiny_encoders, tiny_models

CPU = BuildContext(torch.device("cpu"), torch.float32)


def wanted(target: Path, drafter: Path, quantization: str | None = None) -> WeightsContext:
    config = SpeculativeConfig(3, "draft_model", str(drafter), quantization)  # type: ignore[arg-type]
    settings = Config(dtype="float32", block_size=8)
    return WeightsContext(config, settings, load_model(target, CPU), target, CPU)


@pytest.mark.row("F08.01")
def test_a_drafter_is_loaded_and_its_pages_are_counted(stories: Path) -> None:
    weights = load_draft_model(wanted(stories, stories))
    config = weights.loaded.config
    width = config.num_key_value_heads * (config.hidden_size // config.num_attention_heads)
    assert weights.page_bytes == 8 * config.num_hidden_layers * 2 * width * 4
    assert weights.build.dtype is torch.float32
    small = load_draft_model(wanted(stories, stories, "int8"))
    assert small.loaded.weight_bytes < weights.loaded.weight_bytes
    assert small.build.quantization == "int8" and weights.build.quantization == "none"


@pytest.mark.row("F08.01")
def test_what_cannot_draft_is_refused_by_name(stories: Path, tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path / "other", "LlamaForCausalLM")
    with pytest.raises(SettingsError, match="other cannot draft for this model, it has"):
        load_draft_model(wanted(stories, tmp_path / "other"))
    tiny_encoders.save(tmp_path / "bert", "BertModel")
    with pytest.raises(SettingsError, match="bert makes no tokens"):
        load_draft_model(wanted(stories, tmp_path / "bert"))
