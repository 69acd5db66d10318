"""Bounds of a checkpoint's sizes, checked before anything is allocated for them.

An untrusted file may ask for a billion layers. Every bound is far above what any published model
has.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from baton.errors import ModelError


class Bound(NamedTuple):
    """Least and most of a size."""

    least: int
    most: int


_LAYERS, _WIDTH = Bound(1, 4096), Bound(1, 2**22)
_COUNT, _TOKENS = Bound(0, 2**17), Bound(1, 2**25)
_NAMES = {
    _LAYERS: "num_hidden_layers n_layer n_layers num_layers encoder_layers num_blocks "
    "conf_num_hidden_layers",
    _WIDTH: "hidden_size n_embd d_model hidden_dim input_dim output_dim output_size",
    Bound(0, 2**23): "intermediate_size ffn_hidden_size moe_intermediate_size encoder_ffn_dim",
    _COUNT: "num_attention_heads n_head num_key_value_heads head_dim num_experts num_local_experts "
    "n_routed_experts num_experts_per_tok n_shared_experts num_nextn_predict_layers "
    "encoder_attention_heads num_mel_bins input_feat_size input_size conf_num_attention_heads "
    "num_heads kernel_size conv_kernel_size conf_conv_kernel_size n_window n_window_infer "
    "downsample_hidden_size nemo_conv_channels context_size max_pos_emb bias_max_distance",
    _TOKENS: "vocab_size max_source_positions",
    Bound(1, 2**31): "max_position_embeddings",
}
BOUNDS = {name: bound for bound, names in _NAMES.items() for name in names.split()}
"""By the name in config.json."""
_FLOATS = ("max_position_embeddings",)
"""Sizes that may be written as floats, as beside Music Flamingo's language model."""


def check_sizes(config: SimpleNamespace, where: str = "config.json") -> None:
    """Check the sizes of a configuration and of those inside it.

    Raises:
        ModelError: one of them is no integer, negative, or larger than any model's, or the experts
            per token exceed those of their groups.
    """
    for name, value in vars(config).items():
        if isinstance(value, SimpleNamespace):
            check_sizes(value, f"{where}, {name}")
        elif name in BOUNDS and value is not None:
            for one in value if isinstance(value, list) else [value]:
                _check(name, one, where)
    _check_groups(config, where)


def _check_groups(config: SimpleNamespace, where: str) -> None:
    """Check that the groups of experts that take part have as many as a token is sent to."""
    experts = getattr(config, "n_routed_experts", None) or getattr(config, "num_experts", None)
    names = ("n_group", "topk_group", "num_experts_per_tok")
    sizes = [experts or 1, *(getattr(config, name, None) or 1 for name in names)]
    grouped = sizes[1] != 1 and getattr(config, "topk_method", "") != "greedy"
    if experts is None or not grouped or not all(isinstance(size, int) for size in sizes):
        return
    experts, groups, best, top = sizes
    if experts % groups or top > best * (experts // groups):
        raise ModelError(
            f"{where}: {top} of {experts} experts cannot be chosen in {best} of {groups} groups "
            "(num_experts_per_tok, n_routed_experts, topk_group, n_group)."
        )


def _check(name: str, value: Any, where: str) -> None:
    least, most = BOUNDS[name]
    if name in _FLOATS and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{where}: {name} must be an integer, not {str(value)[:40]!r}.")
    if not least <= value <= most:
        raise ModelError(
            f"{where}: {name} is {str(value)[:40]}; a model has between {least} and {most}."
        )
