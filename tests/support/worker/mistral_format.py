"""A model of transformers in Mistral's own format."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

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
