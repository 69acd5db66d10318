"""`params.json` of Mistral's own checkpoints, as a config in the words of transformers.

Read are mixtures with latent attention, the format of Mistral Large 3. Other models of this format
order the channels of queries and keys in their own way; all of them exist in the format of
transformers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError

_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
_EXPERTS = {
    "num_experts": "n_routed_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "routed_scale": "routed_scaling_factor",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}
_YARN = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_POSITIONS = 128_000
"""Context length where the file does not say it."""


def config_of(params: dict[str, Any]) -> SimpleNamespace:
    """The config of a model.

    Raises:
        ModelError: it is of another kind, or has a setting that is not read.
    """
    moe = params.get("moe") or {}
    if not (params.get("qk_nope_head_dim") and moe.get("num_shared_experts")):
        raise ModelError(
            "This params.json is of a model without latent attention and shared experts, which is "
            "read in the format of transformers only: use the checkpoint with config.json."
        )
    if (every := moe.get("route_every_n", 1)) != 1:
        raise ModelError(f"params.json has route_every_n {every}, and only 1 is read.")
    groups = moe.get("num_expert_groups") or 1
    if groups != 1:
        raise ModelError(f"params.json has {groups} groups of experts, and only one is read.")
    config = SimpleNamespace(
        architectures=["MistralLarge3ForCausalLM"],
        hidden_act="silu",
        norm_topk_prob=True,
        tie_word_embeddings=bool(params.get("tied_embeddings", False)),
        max_position_embeddings=int(params.get("max_position_embeddings") or _POSITIONS),
        rope_parameters=_rope(params),
    )
    for source, names in ((params, _NAMES), (moe, _EXPERTS)):
        for field, name in names.items():
            if source.get(field) is not None:
                setattr(config, name, source[field])
    if (quantization := params.get("quantization")) is not None:
        config.quantization_config = _quantization(quantization)
    return config


def _rope(params: dict[str, Any]) -> SimpleNamespace:
    values: dict[str, Any] = {"rope_theta": float(params.get("rope_theta", 10_000.0))}
    if yarn := params.get("yarn"):
        values |= {"rope_type": "yarn"}
        values |= {name: float(yarn[field]) for field, name in _YARN.items() if field in yarn}
        # Without it neither the rotated channels nor the scores are scaled.
        values |= {"mscale": 1.0, "mscale_all_dim": 1.0}
        if not yarn.get("apply_scale", True):
            values |= {"mscale": 0.0, "mscale_all_dim": 0.0, "attention_factor": 1.0}
    if scaling := params.get("llama_4_scaling"):
        values["llama_4_scaling_beta"] = float(scaling["beta"])
        values.setdefault(
            "original_max_position_embeddings", float(scaling["original_max_position_embeddings"])
        )
        if values["original_max_position_embeddings"] != float(
            scaling["original_max_position_embeddings"]
        ):
            raise ModelError("params.json has two values of original_max_position_embeddings.")
    return SimpleNamespace(**values)


def _quantization(settings: dict[str, Any]) -> SimpleNamespace:
    """The settings of a `quantization_config`."""
    named = str(settings.get("quant_method", "")).lower().replace("_", "-")
    if named == "compressed-tensors":
        raise ModelError(
            "This params.json has weights of compressed-tensors: use the checkpoint with "
            "config.json."
        )
    if settings.get("qformat_weight") != "fp8_e4m3":
        raise ModelError(f"params.json has quantised weights that are not read: {settings}.")
    scheme = settings.get("qscheme_act") or "TENSOR"
    if scheme not in ("TENSOR", "NO_SCALES"):
        raise ModelError(f"params.json has inputs quantised as {scheme}, which is not read.")
    kind = "static" if scheme == "TENSOR" else "dynamic"
    return SimpleNamespace(quant_method="fp8", activation_scheme=kind)
