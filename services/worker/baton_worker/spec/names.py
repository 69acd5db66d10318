"""Checkpoint tensor names: roles to Hugging Face module names."""

from __future__ import annotations

from collections.abc import Iterable

DEFAULT = {
    "embedding": "model.embed_tokens",
    "embedding_norm": "model.embed_norm",
    "fusion": "model.fc",
    "fusion_embedding_norm": "model.enorm",
    "fusion_hidden_norm": "model.hnorm",
    "positions": "model.embed_positions",
    "project_in": "model.project_in",
    "project_out": "model.project_out",
    "rope_cos": "model.rotary_emb.cos_coef",
    "rope_sin": "model.rotary_emb.sin_coef",
    "norm": "model.norm",
    "head": "lm_head",
    "mixer_norm": "model.layers.{layer}.input_layernorm",
    "joined_norm": "model.layers.{layer}.hidden_norm",
    "mixer_post_norm": "model.layers.{layer}.post_attention_layernorm",
    "mixer_scale": "model.layers.{layer}.layer_scale_1",
    "ffn_scale": "model.layers.{layer}.layer_scale_2",
    "ffn_norm": "model.layers.{layer}.post_attention_layernorm",
    "condition_down": "model.layers.{layer}.ada_rms_norm.linear1",
    "condition_up": "model.layers.{layer}.ada_rms_norm.linear2",
    "ffn_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
    "query": "model.layers.{layer}.self_attn.q_proj",
    "key": "model.layers.{layer}.self_attn.k_proj",
    "value": "model.layers.{layer}.self_attn.v_proj",
    "output": "model.layers.{layer}.self_attn.o_proj",
    "query_norm": "model.layers.{layer}.self_attn.q_norm",
    "key_norm": "model.layers.{layer}.self_attn.k_norm",
    "cross_query": "model.layers.{layer}.cross_attn.q_proj",
    "cross_key": "model.layers.{layer}.cross_attn.k_proj",
    "cross_value": "model.layers.{layer}.cross_attn.v_proj",
    "cross_output": "model.layers.{layer}.cross_attn.o_proj",
    "cross_query_norm": "model.layers.{layer}.cross_attn.q_norm",
    "cross_key_norm": "model.layers.{layer}.cross_attn.k_norm",
    "cross_gate": "model.layers.{layer}.cross_attn_attn_gate",
    "cross_ffn_gate": "model.layers.{layer}.cross_attn_mlp_gate",
    "query_down": "model.layers.{layer}.self_attn.q_a_proj",
    "query_down_norm": "model.layers.{layer}.self_attn.q_a_layernorm",
    "query_up": "model.layers.{layer}.self_attn.q_b_proj",
    "kv_down": "model.layers.{layer}.self_attn.kv_a_proj_with_mqa",
    "kv_down_norm": "model.layers.{layer}.self_attn.kv_a_layernorm",
    "kv_up": "model.layers.{layer}.self_attn.kv_b_proj",
    "index_query": "model.layers.{layer}.self_attn.indexer.wq_b",
    "index_key": "model.layers.{layer}.self_attn.indexer.wk",
    "index_key_norm": "model.layers.{layer}.self_attn.indexer.k_norm",
    "index_weights": "model.layers.{layer}.self_attn.indexer.weights_proj",
    "query_narrow": "model.layers.{layer}.self_attn.q_proj",
    "query_narrow_norm": "model.layers.{layer}.self_attn.inter_norm",
    "sink_keys": "model.layers.{layer}.self_attn.param_sink_key",
    "sink_values": "model.layers.{layer}.self_attn.param_sink_value",
    "sinks": "model.layers.{layer}.self_attn.sinks",
    "key_scale": "model.layers.{layer}.self_attn.k_scale",
    "value_scale": "model.layers.{layer}.self_attn.v_scale",
    "attention_gate": "model.layers.{layer}.self_attn.g_proj",
    "query_adapter_down": "model.layers.{layer}.self_attn.q_adapter.0",
    "key_adapter_down": "model.layers.{layer}.self_attn.k_adapter.0",
    "value_adapter_down": "model.layers.{layer}.self_attn.v_adapter.0",
    "query_adapter_up": "model.layers.{layer}.self_attn.q_adapter.1",
    "key_adapter_up": "model.layers.{layer}.self_attn.k_adapter.1",
    "value_adapter_up": "model.layers.{layer}.self_attn.v_adapter.1",
    "ffn_adapter_down": "model.layers.{layer}.mlp.adapter.0",
    "gate_adapter_up": "model.layers.{layer}.mlp.gate_adapter.1",
    "up_adapter_up": "model.layers.{layer}.mlp.up_adapter.1",
    "shared_norm": "model.layers.{layer}.shared_norm",
    "shared_ffn_norm": "model.layers.{layer}.shared_ffn_norm",
    "shared_output": "model.layers.{layer}.linear",
    "linear_norm": "model.layers.{layer}.self_attn.norm",
    "linear_gate": "model.layers.{layer}.self_attn.output_gate",
    "linear_output": "model.layers.{layer}.self_attn.out_proj",
    "conv": "model.layers.{layer}.conv.conv",
    "conv_before": "model.layers.{layer}.conv.b_proj",
    "conv_after": "model.layers.{layer}.conv.c_proj",
    "conv_input": "model.layers.{layer}.conv.x_proj",
    "conv_output": "model.layers.{layer}.conv.out_proj",
    "delta": "model.layers.{layer}.linear_attn",
    "delta_query": "model.layers.{layer}.linear_attn.q_proj",
    "delta_key": "model.layers.{layer}.linear_attn.k_proj",
    "delta_value": "model.layers.{layer}.linear_attn.v_proj",
    "delta_gate": "model.layers.{layer}.linear_attn.in_proj_z",
    "delta_gate_down": "model.layers.{layer}.linear_attn.g_a_proj",
    "delta_strength": "model.layers.{layer}.linear_attn.in_proj_b",
    "delta_decay": "model.layers.{layer}.linear_attn.in_proj_a",
    "delta_decay_down": "model.layers.{layer}.linear_attn.f_a_proj",
    "delta_query_conv": "model.layers.{layer}.linear_attn.q_conv1d",
    "delta_key_conv": "model.layers.{layer}.linear_attn.k_conv1d",
    "delta_value_conv": "model.layers.{layer}.linear_attn.v_conv1d",
    "delta_norm": "model.layers.{layer}.linear_attn.norm",
    "delta_output": "model.layers.{layer}.linear_attn.out_proj",
    "ssm": "model.layers.{layer}.mamba",
    "ssm_gate": "model.layers.{layer}.mamba.z_proj",
    "ssm_x": "model.layers.{layer}.mamba.x_proj",
    "ssm_b": "model.layers.{layer}.mamba.b_proj",
    "ssm_c": "model.layers.{layer}.mamba.c_proj",
    "ssm_dt": "model.layers.{layer}.mamba.dt_proj",
    "ssm_conv_x": "model.layers.{layer}.mamba.conv_x",
    "ssm_conv_b": "model.layers.{layer}.mamba.conv_b",
    "ssm_conv_c": "model.layers.{layer}.mamba.conv_c",
    "ssm_select": "model.layers.{layer}.mamba.bcdt_proj",
    "ssm_step": "model.layers.{layer}.mamba.dt_proj",
    "ssm_step_norm": "model.layers.{layer}.mamba.dt_norm",
    "ssm_write_norm": "model.layers.{layer}.mamba.B_norm",
    "ssm_read_norm": "model.layers.{layer}.mamba.C_norm",
    "ssm_norm": "model.layers.{layer}.mamba.norm",
    "ssm_output": "model.layers.{layer}.mamba.out_proj",
    "scan_input": "model.layers.{layer}.mamba.input_proj",
    "scan_gate": "model.layers.{layer}.mamba.gate_proj",
    "scan_select": "model.layers.{layer}.mamba.x_proj",
    "scan_step_norm": "model.layers.{layer}.mamba.dt_layernorm",
    "scan_write_norm": "model.layers.{layer}.mamba.b_layernorm",
    "scan_read_norm": "model.layers.{layer}.mamba.c_layernorm",
    "scan_step": "model.layers.{layer}.mamba.dt_proj",
    "scan_rates": "model.layers.{layer}.mamba.A_log",
    "scan_skip": "model.layers.{layer}.mamba.D",
    "scan_output": "model.layers.{layer}.mamba.out_proj",
    "gate": "model.layers.{layer}.mlp.gate_proj",
    "up": "model.layers.{layer}.mlp.up_proj",
    "down": "model.layers.{layer}.mlp.down_proj",
    "xielu_positive": "model.layers.{layer}.mlp.act_fn.alpha_p",
    "xielu_negative": "model.layers.{layer}.mlp.act_fn.alpha_n",
    "xielu_slope": "model.layers.{layer}.mlp.act_fn.beta",
    "xielu_floor": "model.layers.{layer}.mlp.act_fn.eps",
    "router": "model.layers.{layer}.mlp.gate",
    "router_correction": "model.layers.{layer}.mlp.gate.e_score_correction_bias",
    "expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    "expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    "expert_down": "model.layers.{layer}.mlp.experts.{expert}.down_proj",
    "experts_in": "model.layers.{layer}.mlp.experts_in_proj",
    "experts_out": "model.layers.{layer}.mlp.experts_out_proj",
    "vision_router": "model.layers.{layer}.mlp.vision_gate",
    "vision_router_correction": "model.layers.{layer}.mlp.vision_gate.e_score_correction_bias",
    "vision_expert_gate": "model.layers.{layer}.mlp.experts.{expert}.gate_proj",
    "vision_expert_up": "model.layers.{layer}.mlp.experts.{expert}.up_proj",
    "vision_expert_down": "model.layers.{layer}.mlp.experts.{expert}.down_proj",
    "shared_gate": "model.layers.{layer}.mlp.shared_experts.gate_proj",
    "shared_up": "model.layers.{layer}.mlp.shared_experts.up_proj",
    "shared_down": "model.layers.{layer}.mlp.shared_experts.down_proj",
    "shared_expert_gate": "model.layers.{layer}.mlp.shared_expert_gate",
}

# Buffers in older checkpoints that follow from the config.
_RECOMPUTED = (
    ".rotary_emb.inv_freq",
    ".relative_position_index",
    *(f".{attention}.bias" for attention in ("self_attn", "attn", "attention")),
    *(f".{attention}.masked_bias" for attention in ("self_attn", "attn", "attention")),
)


def placed(name: str, layer: int) -> str:
    """A template for one layer: `{layer}`, or `{pair}` and `{half}` if two of our layers form one
    layer of the checkpoint."""
    pair, half = divmod(layer, 2)
    name = name.replace("{pair}", str(pair)).replace("{half}", str(half))
    return name.replace("{layer}", str(layer))


class Names:
    """Role to module name, for one layer or (layer None) for the parts outside the stack."""

    def __init__(self, changes: Iterable[tuple[str, str]] = (), layer: int | None = None) -> None:
        self._table = DEFAULT | dict(changes)
        self._layer = layer

    def at(self, layer: int) -> Names:
        """The names of layer number `layer`."""
        return Names(self._table.items(), layer)

    def __call__(self, role: str) -> str:
        """The module name of `role`; append `.weight` or `.bias` for the tensor."""
        name = self._table[role]
        return name if self._layer is None else placed(name, self._layer)

    def every(self, num_layers: int) -> list[str]:
        """Each module name of a model with this many layers, once."""
        layers = [self.at(layer) for layer in range(num_layers)]
        return list(dict.fromkeys(names(role) for names in layers for role in self._table))


def is_recomputed(tensor: str) -> bool:
    """Whether a tensor may be left unread because it follows from the configuration."""
    return tensor.endswith(_RECOMPUTED)
