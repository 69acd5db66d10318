"""What a rank has of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.checkpoint.rank_share import ModelSplit, rank_share
from baton_worker.checkpoint.task import served_task
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec.hf_config import read_config
from tests.fakes.threaded_ranks import together
from tests.support import tiny_models


def test_a_model_without_experts_has_none_to_deal_out(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM")
    full = served_task(read_config(tmp_path), tmp_path)
    context = BuildContext(torch.device("cpu"), torch.float32)
    with pytest.raises(SettingsError, match="--enable-expert-parallel: this model has no experts"):
        together(2, lambda ranks: rank_share(full, context, ModelSplit(ranks, experts="linear")))
