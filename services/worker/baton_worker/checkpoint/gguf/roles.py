"""Maps tensor names of a GGUF file to the roles of a spec."""

from __future__ import annotations

from collections.abc import Mapping

from baton_worker.checkpoint.gguf.recurrent_pieces import Piece, Place, recurrent_pieces
from baton_worker.spec import Attention, Decoder, Glu, Moe
from baton_worker.spec.names import DEFAULT, Names, placed

ROLES = {
    "token_embd": "embedding",
    "token_types": "token_types",
    "token_embd_norm": "embedding_norm",
    "position_embd": "positions",
    "output_norm": "norm",
    "output": "head",
    "attn_norm": "mixer_norm",
    "attn_output_norm": "mixer_norm",
    "post_attention_norm": "mixer_post_norm",
    "ffn_norm": "ffn_norm",
    "layer_output_norm": "ffn_norm",
    "post_ffw_norm": "ffn_post_norm",
    "pre_ffw_norm_2": "experts_norm",
    "post_ffw_norm_1": "dense_post_norm",
    "post_ffw_norm_2": "experts_post_norm",
    "layer_output_scale": "layer_factor",
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "output",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "attn_gate": "attention_gate",
    "attn_sinks": "sinks",
    "attn_q_a": "query_down",
    "attn_q_a_norm": "query_down_norm",
    "attn_q_b": "query_up",
    "attn_kv_a_mqa": "kv_down",
    "attn_kv_a_norm": "kv_down_norm",
    "attn_kv_b": "kv_up",
    "indexer.attn_q_b": "index_query",
    "indexer.attn_k": "index_key",
    "indexer.k_norm": "index_key_norm",
    "indexer.proj": "index_weights",
    "ssm_conv1d": "conv",
    "ssm_x": "scan_select",
    "ssm_dt": "scan_step",
    "ssm_a": "scan_rates",
    "ssm_d": "scan_skip",
    "ssm_out": "scan_output",
    "ssm_dt_norm": "scan_step_norm",
    "ssm_b_norm": "scan_write_norm",
    "ssm_c_norm": "scan_read_norm",
    "per_layer_token_embd": "layer_embedding",
    "per_layer_model_proj": "layer_projection",
    "per_layer_proj_norm": "layer_projection_norm",
    "inp_gate": "layer_gate",
    "proj": "layer_output",
    "post_norm": "layer_output_norm",
    "altup_router": "altup_router",
    "altup_router_norm": "altup_router_norm",
    "altup_predict_coef": "altup_prediction",
    "altup_correct_coef": "altup_correction",
    "altup_correct_scale": "altup_scale",
    "laurel_l": "laurel_left",
    "laurel_r": "laurel_right",
    "laurel_post_norm": "laurel_norm",
    "shortconv.conv": "conv",
    "shortconv.out_proj": "conv_output",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "ffn_gate_inp": "router",
    "exp_probs_b": "router_correction",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "shared_expert_gate",
}
"""GGUF part name to role. Norm names may refer to another place in the block; then the names of the
`gguf` package are used."""
_JOINED: dict[str, list[tuple[str, ...]]] = {
    "attn_q": [("query", "attention_gate")],
    "ssm_ba": [("delta_strength", "delta_decay")],
    "ssm_in": [("ssm_gate", "ssm_x", "ssm_b", "ssm_c", "ssm_dt"), ("ssm_gate", "ssm_x")],
    "ssm_conv1d": [("ssm_conv_x", "ssm_conv_b", "ssm_conv_c")],
}
"""Parts that hold the rows of several roles as a Hugging Face tensor does."""
_EXPERTS = {
    **{f"ffn_{part}_exps": (f"expert_{part}",) for part in ("gate", "up", "down")},
    "ffn_gate_up_exps": ("expert_gate", "expert_up"),
}
"""Stacked experts: part name to the roles whose rows an expert has in sequence."""
_STREAMS = {
    "altup_proj": "model.altup_projections.{expert}.weight",
    "altup_unembd_proj": "model.altup_unembed_projections.{expert}.weight",
}
"""Stacked projections of Gemma 3n's streams."""
ROUTER_SCALES = {"ffn_gate_inp": "router_norm", "ffn_down_exps": "router_factors"}
"""Parts whose scales are vectors of a router, of a family that has `scaled_routers`."""
BARE = {
    "router_correction",
    "router_factors",
    "sinks",
    "scan_rates",
    "scan_skip",
    "altup_scale",
    "layer_factor",
}
"""Roles without a suffix in Hugging Face names."""


def place(stored: str) -> Place:
    """`blk.3.attn_q.weight` to (3, "attn_q", "weight")."""
    module, _, suffix = stored.rpartition(".")
    if not module.startswith("blk."):
        return Place(None, module, suffix)
    layer, _, part = module.removeprefix("blk.").partition(".")
    part, suffix = (part, suffix) if part else (suffix, "")
    return Place(int(layer), part, suffix) if layer.isdigit() else Place(None, module, suffix)


_BEFORE, _BEHIND = ("mixer_norm", "ffn_norm"), ("mixer_post_norm", "ffn_post_norm")
_STYLES = {"post": _BEFORE, "sandwich": (), "scaled_sandwich": (), "altup": ()}
"""Norms that a style omits around the halves of a layer; most styles have no post-norms."""


def wanted(spec: Decoder, layer: int) -> list[str]:
    """Module names of the roles in a layer of the spec."""
    names, without = Names(spec.tensors.names).at(layer), _STYLES.get(spec.style, _BEHIND)
    named = DEFAULT.keys() | dict(spec.tensors.names).keys()
    roles = sorted(named & set(ROLES.values()) - set(without))
    return [names(role) for role in roles]


class Roles:
    """The tensors of one spec.

    Args:
        spec: defines the required roles.
        known: GGUF to Hugging Face module names, from the `gguf` package.
    """

    def __init__(self, spec: Decoder, known: Mapping[str, str]) -> None:
        self._spec, self._known, self._names = spec, known, Names(spec.tensors.names)
        self._roles = DEFAULT.keys() | dict(spec.tensors.names).keys()
        self._sources = {rule.parts: rule.source for rule in spec.tensors.fused}

    def stacked(self, at: Place) -> list[str]:
        """Of a stack of matrices the names that share each one's rows, with `{expert}` for its
        number; empty for other tensors."""
        if at.part in _STREAMS:
            return [_STREAMS[at.part]]
        return [self.of(role, at) for role in _EXPERTS.get(at.part, ())]

    def router_vector(self, at: Place) -> str:
        """The name of what a router's or an expert's scale holds."""
        return self.of(ROUTER_SCALES[at.part], at._replace(suffix="weight"))

    def pieces(self, stored: str, shape: tuple[int, ...]) -> list[Piece]:
        """Contents of a tensor: parts of one name, or several names in sequence."""
        at = self._within(place(stored))
        mixer, ffn = (None, None) if at.layer is None else self._spec.layers[at.layer]
        joined = (self._sources.get(parts) for parts in _JOINED.get(at.part, ()))
        if at.layer is not None and (source := next(filter(None, joined), None)):
            return [Piece(f"{placed(source, at.layer)}.{at.suffix}")]
        if isinstance(mixer, Attention) and at.part in ("attn_qkv", "attn_q", "attn_k"):
            query, key, value = self._attention(mixer, at)
            return {"attn_q": [query], "attn_k": [key]}.get(at.part, [query, key, value])
        if at.part == "ffn_up" and isinstance(ffn, Glu) and shape[0] == 2 * ffn.intermediate:
            return [Piece(self.of(role, at), ffn.intermediate, None) for role in ("gate", "up")]
        shared = ffn.shared if isinstance(ffn, Moe) and at.part == "ffn_up_shexp" else None
        if shared is not None and shape[0] == 2 * shared.intermediate:
            roles = ("shared_gate", "shared_up")
            return [Piece(self.of(role, at), shared.intermediate) for role in roles]
        if pieces := recurrent_pieces(mixer, at, self.of):
            return pieces
        return [Piece(self.name(stored))]

    def _attention(self, mixer: Attention, at: Place) -> tuple[Piece, Piece, Piece]:
        heads, kv_heads, size = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
        return (
            Piece(self.of("query", at), heads * size, heads),
            Piece(self.of("key", at), kv_heads * size, kv_heads),
            Piece(self.of("value", at), kv_heads * mixer.value_dim, None),
        )

    def name(self, stored: str) -> str:
        """The name of a tensor with a single part; unchanged if it is unknown."""
        at = self._within(place(stored))
        role, module = ROLES.get(at.part), stored.rpartition(".")[0]
        if module in self._known and (role not in self._roles or str(role).endswith("norm")):
            return f"{self._known[module]}.{at.suffix}"
        return self.of(role, at) if role in self._roles else stored

    def _within(self, at: Place) -> Place:
        """The place in the spec, which may have two layers, a state space and an attention, for one
        of the file."""
        if at.layer is None or self._spec.style != "beside":
            return at
        return at._replace(layer=2 * at.layer + (not at.part.startswith("ssm_")))

    def of(self, role: str, at: Place) -> str:
        """The name of a role in the layer of a stored tensor."""
        names = self._names if at.layer is None else self._names.at(at.layer)
        return names(role) if role in BARE else f"{names(role)}.{at.suffix}"
