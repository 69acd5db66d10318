"""Random weights in place of a checkpoint's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU = BuildContext(torch.device("cpu"), torch.float32)


def without_weights(folder: Path, architecture: str) -> None:
    tiny_models.save_checkpoint(folder, architecture)
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_a_config_is_enough_and_every_load_is_the_same_model(
    tmp_path: Path, driver: Any, architecture: str
) -> None:
    without_weights(tmp_path, architecture)
    with pytest.raises(ModelError, match="holds no model"):
        load_model(tmp_path, CPU)
    first, second = (
        driver(load_model(tmp_path, CPU, dummy=True), 1).step({0: [2, 3, 4]})[0] for _ in range(2)
    )
    assert torch.equal(first, second) and bool(first.isfinite().all()) and bool(first.any())


def test_what_has_no_meaning_is_refused(tmp_path: Path) -> None:
    without_weights(tmp_path, "LlamaForCausalLM")
    given = json.loads((tmp_path / "config.json").read_text())
    quantised = given | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(quantised))
    with pytest.raises(ModelError, match="names the weights of awq"):
        load_model(tmp_path, CPU, dummy=True)
    (tmp_path / "config.json").write_text(json.dumps(given | {"architectures": ["Unknown"]}))
    with pytest.raises(ModelError, match="architecture that has a spec"):
        load_model(tmp_path, CPU, dummy=True)
