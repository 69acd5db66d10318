"""Checkpoints in Mistral's own format, against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.checkpoint.formats.mistral import MistralFolder, transformers_name
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models
from tests.support.worker.mistral_format import own_tensors, params_of

pytestmark = pytest.mark.row("L11")


def saved(folder: Path, *, scaled: bool = True) -> Any:
    """The model of transformers; the folder has the format alone."""
    rope = tiny_models.TRAITS["Mistral4ForCausalLM"]["rope_parameters"]
    factors = {"mscale": 1.0, "mscale_all_dim": 1.0 if scaled else 0.0}
    rope = rope | factors | ({} if scaled else {"attention_factor": 1.0})
    changes = {"n_group": 1, "topk_group": 1, "attention_bias": False, "rope_parameters": rope}
    model = tiny_models.save_checkpoint(folder, "Mistral4ForCausalLM", **changes)
    params = params_of(json.loads((folder / "config.json").read_text()))
    params["yarn"]["apply_scale"] = scaled
    (folder / "params.json").write_text(json.dumps(params))
    tensors = own_tensors(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "consolidated.safetensors")
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
    (folder / "generation_config.json").unlink(missing_ok=True)
    return model


@pytest.mark.parametrize("scaled", [True, False])
def test_logits_are_those_of_transformers(tmp_path: Path, driver: Any, scaled: bool) -> None:
    model = saved(tmp_path, scaled=scaled)
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    tokens = [n * 7 % 300 for n in range(60)]
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0]
    assert (driver(loaded, 1).step({0: tokens})[0] - wanted).abs().max() < 2e-4
    assert isinstance(open_checkpoint(tmp_path), MistralFolder)
    # Images are left out, and what nobody knows is refused.
    path = tmp_path / "consolidated.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"vision_encoder.ln_pre.weight": torch.ones(3)}, path)
    load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    save_file(tensors | {"layers.0.mystery.weight": torch.ones(3)}, path)
    with pytest.raises(ModelError, match="mystery"):
        load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))


def test_scales_have_their_names_and_shards_their_order(tmp_path: Path) -> None:
    assert transformers_name("layers.3.experts.12.w2.qscale_weight") == (
        "model.layers.3.mlp.experts.12.down_proj.weight_scale"
    )
    assert transformers_name("layers.3.shared_experts.w1.qscale_act") == (
        "model.layers.3.mlp.shared_experts.gate_proj.input_scale"
    )
    saved(tmp_path)
    path = tmp_path / "consolidated.safetensors"
    path.rename(tmp_path / "consolidated-00001-of-00001.safetensors")
    load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    (tmp_path / "consolidated-00001-of-00001.safetensors").unlink()
    with pytest.raises(ModelError, match="no consolidated"):
        load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
