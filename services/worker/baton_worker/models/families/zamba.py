"""Zamba2: Mamba-2 layers, and a few transformer blocks that many layers share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import Config, architecture, decoder, gqa, rms
from baton_worker.models.families.mamba2 import fused
from baton_worker.spec import (
    Attention,
    Decoder,
    Ffn,
    Fused,
    GatedNorm,
    Mixer,
    SharedAttention,
    SharedGlu,
    StateSpace,
)
from baton_worker.spec.names import DEFAULT

PAIR = "model.layers.{pair}"
SHARED = f"{PAIR}.shared_transformer"
NAMES = {
    "norm": "model.final_layernorm",
    "shared_norm": f"{SHARED}.input_layernorm",
    "shared_ffn_norm": f"{SHARED}.pre_ff_layernorm",
    "query_adapter_down": f"{SHARED}.self_attn.linear_q_adapter.0",
    "key_adapter_down": f"{SHARED}.self_attn.linear_k_adapter.0",
    "value_adapter_down": f"{SHARED}.self_attn.linear_v_adapter.0",
    "query_adapter_up": f"{SHARED}.self_attn.linear_q_adapter.1",
    "key_adapter_up": f"{SHARED}.self_attn.linear_k_adapter.1",
    "value_adapter_up": f"{SHARED}.self_attn.linear_v_adapter.1",
    "ffn_adapter_down": f"{SHARED}.feed_forward.gate_up_proj_adapter.0",
    **{role: f"{SHARED}.self_attn.{role[0]}_proj" for role in ("query", "key", "value", "output")},
    **{role: f"{SHARED}.feed_forward.{role}_proj" for role in ("gate", "up", "down")},
}
_MAMBA = {"linear_attention", "mamba"}
_LONG_CONTEXT = 16384


def layer_kinds(c: Config) -> list[str]:
    """ "hybrid" for layers with a shared block before their mixer, "mamba" for the others."""
    listed = getattr(c, "layers_block_type", None) or getattr(c, "layer_types", None)
    if listed is None:
        at = {6 * n for n in range(1, 8)} | {47, 51}
        listed = ["hybrid" if layer in at else "mamba" for layer in range(c.num_hidden_layers)]
    kinds = ["mamba" if kind in _MAMBA else kind for kind in listed]
    if strange := {*kinds} - {"mamba", "hybrid"}:
        raise ModelError(f"Zamba2 has no layers of the kind '{min(strange)}'.")
    return kinds


def shared_heads(c: Config) -> Attention:
    """Heads over the stream and the embeddings; scores are divided by the root of half a head."""
    head_dim = 2 * c.hidden_size // c.num_attention_heads
    c = SimpleNamespace(**vars(c) | {"head_dim": head_dim})
    heads = gqa(c, scale=(head_dim / 2) ** -0.5)
    return heads if getattr(c, "use_mem_rope", False) else replace(heads, rope=None)


def shared_blocks(
    c: Config, kinds: list[str]
) -> Iterator[tuple[SharedAttention, SharedGlu] | None]:
    """The shared block of each layer in turn; None for layers without one."""
    heads, used = shared_heads(c), 0
    fields = {field.name: getattr(heads, field.name) for field in dataclasses.fields(heads)}
    size = getattr(c, "intermediate_size", None) or 4 * c.hidden_size
    rank = getattr(c, "adapter_rank", 128)
    adapted = rank if getattr(c, "use_shared_attention_adapter", False) else None
    form = getattr(c, "hidden_act", "gelu"), getattr(c, "add_bias_linear", False)
    for kind in kinds:
        if kind == "mamba":
            yield None
            continue
        block, used = used % getattr(c, "num_mem_blocks", 1), used + 1
        attention = SharedAttention(**fields, block=block, adapter_rank=adapted)
        yield attention, SharedGlu(size, *form, block=block, adapter_rank=rank)


def zamba_mixer(c: Config) -> StateSpace:
    """Mamba-2 with a lower bound of time steps; its convolution always has a bias."""
    heads, groups = getattr(c, "n_mamba_heads", 8), getattr(c, "mamba_ngroups", 1)
    return StateSpace(
        num_heads=heads,
        head_dim=int(getattr(c, "mamba_expand", 2) * c.hidden_size) // heads,
        num_groups=groups,
        state_size=getattr(c, "mamba_d_state", 64),
        taps=getattr(c, "mamba_d_conv", 4),
        norm=GatedNorm(1e-5, groups),
        limits=(getattr(c, "time_step_min", 0.001), float("inf")),
        bias=getattr(c, "add_bias_linear", False),
    )


def adapter_renames(at: list[int]) -> Iterator[tuple[str, str]]:
    """The first layer of a block has the adapters of all of its layers, numbered over the hybrid
    layers, whose indices are `at`: each is named after its own layer."""
    part = r"(self_attn|feed_forward)\.(\w+)_adapter_list"
    for number, layer in enumerate(at):
        pattern = rf"^model\.layers\.\d+\.shared_transformer\.{part}\.{number}\."
        yield pattern, rf"model.layers.{layer}.shared_transformer.\1.\2_adapter."


@architecture("Zamba2ForCausalLM")
def zamba2(c: Config) -> Decoder:
    """Two of our layers form one of the checkpoint's: the shared block if the layer has one, and
    the state space that reads its output (arXiv:2411.15242)."""
    kinds, mixer = layer_kinds(c), zamba_mixer(c)
    if getattr(c, "use_long_context", False):
        c.max_position_embeddings = _LONG_CONTEXT
    halves = [(pair or (None, None), (mixer, None)) for pair in shared_blocks(c, kinds)]
    layers: list[tuple[Mixer | None, Ffn | None]] = list(chain.from_iterable(halves))
    c.num_hidden_layers = len(layers)
    at = [layer for layer, kind in enumerate(kinds) if kind == "hybrid"]
    gate_up = f"{SHARED}.feed_forward.gate_up_proj"
    return decoder(
        c,
        [mixer for mixer, _ in layers],
        [ffn for _, ffn in layers],
        tied=True,
        norm=rms(c, 1e-5),
        style="shared",
        names=tuple((_in_pairs(DEFAULT) | NAMES).items()),
        fused=(
            *fused(f"{PAIR}.mamba"),
            Fused(gate_up, ("gate", "up")),
            Fused(f"{gate_up}_adapter.1", ("gate_adapter_up", "up_adapter_up")),
        ),
        renames=((r"\.mamba_decoder\.", "."), *adapter_renames(at)),
        unused=tuple(f"model.layers.{layer}.shared_transformer." for layer in at),
    )


def _in_pairs(names: Mapping[str, str]) -> dict[str, str]:
    return {role: name.replace("{layer}", "{pair}") for role, name in names.items()}
