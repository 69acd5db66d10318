"""HunYuan with cross-layer attention, which transformers leaves out, against its definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

LENDERS = (0, 2)


def rewired(model: Any) -> Any:
    """The transformers model with the keys of layers 1 and 3 taken from the layer before."""
    layers, kept = model.model.layers, dict[int, torch.Tensor]()

    def keep(layer: int, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        kept[layer] = named["hidden_states"]

    for layer, block in enumerate(layers):
        attention = block.self_attn
        if layer in LENDERS:
            attention.register_forward_pre_hook(
                lambda module, inputs, named, layer=layer: keep(layer, inputs, named),
                with_kwargs=True,
            )
        else:
            source = layers[layer - 1].self_attn
            for name in ("k_proj", "v_proj"):
                projection = getattr(source, name)
                getattr(attention, name).forward = lambda x, projection=projection, layer=layer: (
                    projection.__class__.forward(projection, kept[layer - 1])
                )
    return model


@pytest.mark.row("M08")
def test_layers_between_use_the_keys_and_values_of_the_last_that_lends(
    tmp_path: Path, driver: Any
) -> None:
    changes = {"num_hidden_layers": 4, "moe_topk": 3}
    model = tiny_models.save_checkpoint(tmp_path, "HunYuanMoEV1ForCausalLM", **changes)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in (1, 3):
        for part in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
            del tensors[f"model.layers.{layer}.self_attn.{part}"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    fields = {"use_cla": True, "cla_share_factor": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    tokens = list(range(2, 60))
    with torch.inference_mode():
        expected = rewired(model)(torch.tensor([tokens]), use_cache=False).logits[0]
    assert (driver(loaded, 1).step({0: tokens})[0] - expected).abs().max() < 1e-3
    run = driver(loaded, 1)
    chunks = [run.step({0: tokens[at : at + 7]})[0] for at in range(0, 58, 7)]
    assert (torch.cat(chunks) - expected).abs().max() < 1e-3
    ours = driver(loaded, 2).greedy([tokens[:20], tokens[:5]], 32)
    for prompt, continuation in zip((tokens[:20], tokens[:5]), ours, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([prompt + continuation[:-1]])
            logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == continuation
