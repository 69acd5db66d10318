"""Models without weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.empty_model import empty_model
from baton_worker.checkpoint.task import served_task
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec.hf_config import read_config
from tests.support import tiny_models


def test_sizes_beyond_the_memory_of_the_machine_are_one_sentence(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "Qwen2ForCausalLM")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 3 << 20}))
    task = served_task(read_config(tmp_path), tmp_path)
    with pytest.raises(ModelError, match="more than the memory of this machine"):
        empty_model(task, BuildContext(torch.device("cpu"), torch.float32), None)
