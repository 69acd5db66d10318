"""Checkpoints in Mistral's own format, against transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model, open_checkpoint
from baton_worker.checkpoint.mistral import MistralFolder, transformers_name
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

pytestmark = pytest.mark.row("L11")
OWN_NAMES = (
    (r"model\.embed_tokens", "tok_embeddings"),
    (r"model\.norm", "norm"),
    (r"lm_head", "output"),
    (r"model\.layers", "layers"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"self_attn\.q_a_proj", "attention.wq_a"),
    (r"self_attn\.q_a_layernorm", "attention.q_a_norm"),
    (r"self_attn\.q_b_proj", "attention.wq_b"),
    (r"self_attn\.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    (r"self_attn\.kv_a_layernorm", "attention.kv_a_norm"),
    (r"self_attn\.kv_b_proj", "attention.wkv_b"),
    (r"self_attn\.o_proj", "attention.wo"),
    (r"mlp\.gate\.", "gate."),
    (r"mlp\.(experts\.\d+|shared_experts)\.", r"\1."),
    (r"mlp\.", "feed_forward."),
    (r"gate_proj", "w1"),
    (r"down_proj", "w2"),
    (r"up_proj", "w3"),
)
"""Names of transformers and of the format, in the order in which they are replaced."""


def own_tensors(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers as the format has them, each expert apart."""
    apart = dict[str, Tensor]()
    for name, tensor in stored.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                stem = name.replace("gate_up_proj", str(expert))
                apart |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                apart[name.replace("down_proj", f"{expert}.down_proj.weight")] = down
        else:
            apart[name] = tensor
    found = dict[str, Tensor]()
    for name, tensor in apart.items():
        for pattern, own in OWN_NAMES:
            name = re.sub(pattern, own, name)
        found[name] = tensor.contiguous()
    return found


def params_of(c: dict[str, Any]) -> dict[str, Any]:
    rope = c["rope_parameters"]
    return {
        "dim": c["hidden_size"],
        "n_layers": c["num_hidden_layers"],
        "n_heads": c["num_attention_heads"],
        "n_kv_heads": c["num_key_value_heads"],
        "hidden_dim": c["intermediate_size"],
        "norm_eps": c["rms_norm_eps"],
        "rope_theta": rope["rope_theta"],
        "tied_embeddings": False,
        "max_position_embeddings": c["max_position_embeddings"],
        **{k: c[k] for k in ("vocab_size", "q_lora_rank", "kv_lora_rank", "v_head_dim")},
        **{k: c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim")},
        "moe": {
            "num_experts": c["n_routed_experts"],
            "num_experts_per_tok": c["num_experts_per_tok"],
            "num_shared_experts": c["n_shared_experts"],
            "expert_hidden_dim": c["moe_intermediate_size"],
            "routed_scale": c["routed_scaling_factor"],
            "first_k_dense_replace": c["first_k_dense_replace"],
            "num_expert_groups": 1,
            "num_expert_groups_per_tok": 1,
            "route_every_n": 1,
        },
        "yarn": {
            "factor": rope["factor"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
            "beta": rope["beta_fast"],
            "alpha": rope["beta_slow"],
            "apply_scale": True,
        },
        "llama_4_scaling": {
            "beta": rope["llama_4_scaling_beta"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        },
    }


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
