"""Gemma 4: wide global heads, embeddings by layer, shared KV, and experts beside feed-forwards."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError
from baton_worker.models.families import gemma4_vision
from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture, decoder, rms, rope
from baton_worker.models.families.gemma import SANDWICH, TANH
from baton_worker.models.families.gemma3n import LAYER_EMBEDDING_NAMES, unread_kv
from baton_worker.models.families.moe_common import stacked
from baton_worker.models.families.vision_common import (
    RENAMES,
    audio_token,
    image_token,
    video_token,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Embedding,
    Ffn,
    Glu,
    Head,
    KeyAsValueAttention,
    KVReuse,
    LayerEmbeddings,
    Mask,
    Moe,
    NormedValueAttention,
    ParallelMoe,
    Projections,
    QkNorm,
    Router,
)

_FULL, _LOCAL = "full_attention", "sliding_attention"
_ROPES = SimpleNamespace(
    full_attention=SimpleNamespace(
        rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1_000_000.0
    ),
    sliding_attention=SimpleNamespace(rope_type="default", rope_theta=10_000.0),
)
_TEXT: dict[str, Any] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": None,
    "hidden_activation": TANH,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "attention_bias": False,
    "sliding_window": 512,
    "layer_types": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": None,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "per_layer_config": None,
}
"""Defaults of transformers."""
_LAYER = "model.layers.{layer}"
_NAMES = (
    *SANDWICH,
    *LAYER_EMBEDDING_NAMES,
    *(
        (role, f"{_LAYER}.{name}")
        for role, name in {
            "layer_factor": "layer_scalar",
            "router": "router.proj",
            "router_norm": "router.norm",
            "router_factors": "router.per_expert_scale",
            "expert_gate": "experts.{expert}.gate_proj",
            "expert_up": "experts.{expert}.up_proj",
            "expert_down": "experts.{expert}.down_proj",
            "experts_norm": "pre_feedforward_layernorm_2",
            "experts_post_norm": "post_feedforward_layernorm_2",
            "dense_post_norm": "post_feedforward_layernorm_1",
        }.items()
    ),
)
_VISION, _AUDIO = ("vision_tower.", "embed_vision."), ("audio_tower.", "embed_audio.")


@architecture("Gemma4ForCausalLM")
def gemma4(c: Config) -> Decoder:
    """The language model alone."""
    c = SimpleNamespace(**_TEXT | vars(c))
    if c.use_bidirectional_attention == "all":
        raise ModelError("Baton cannot serve Gemma 4 with use_bidirectional_attention 'all'.")
    mixers = _mixers(c)
    width = c.hidden_size_per_layer_input
    own = LayerEmbeddings(width, c.vocab_size_per_layer_input, c.hidden_activation)
    return decoder(
        c,
        mixers,
        [_ffn(c, mixer) for mixer in mixers],
        tied=True,
        norm=rms(c),
        head=Head(softcap=c.final_logit_softcapping),
        embedding=Embedding(scale=c.hidden_size**0.5),
        style="scaled_sandwich",
        layer_embeddings=own if width else None,
        names=_NAMES,
        stacked=stacked(f"{_LAYER}.experts"),
        renames=((r"\.router\.scale$", ".router.norm.weight"),),
        unused=unread_kv(mixers),
    )


@architecture("Gemma4ForConditionalGeneration")
def gemma4_multimodal(c: Config) -> Decoder:
    """For texts, and for images if the config has their encoder; that of sounds is not loaded."""
    served = {"served_length": getattr(c, "served_length", None)}
    text = SimpleNamespace(**vars(part_of(c, "text", _TEXT)) | served)
    whole, sees = gemma4(text), getattr(c, "vision_config", None) is not None
    unread = (*_AUDIO, *(() if sees else _VISION))
    towers = tuple(f"{prefix}{name}" for prefix in ("", "model.") for name in unread)
    tensors = replace(
        whole.tensors,
        renames=(*RENAMES, *gemma4_vision.RENAMES, *whole.tensors.renames),
        unused=(*whole.tensors.unused, *towers),
    )
    own = whole.layer_embeddings and replace(
        whole.layer_embeddings,
        media_tokens=(image_token(c, 258_880), audio_token(c, 258_881), video_token(c, 258_884)),
        media_row=getattr(text, "pad_token_id", None) or 0,
    )
    whole = replace(whole, tensors=tensors, layer_embeddings=own)
    if not sees:
        return whole
    if gemma4_vision.sees_both_ways(c):
        whole = gemma4_vision.with_window_spans(whole)
    return replace(whole, tower=gemma4_vision.tower(c, whole.hidden))


def _kinds(c: SimpleNamespace) -> list[str]:
    """By default every sixth layer is global; the last one always is."""
    count = c.num_hidden_layers
    kinds = c.layer_types or [_FULL if (n + 1) % 6 == 0 else _LOCAL for n in range(count)]
    return [*kinds[:-1], _FULL]


def _sizes(c: SimpleNamespace, layer: int, kind: str) -> dict[str, int]:
    """Channels of a head and number of KV heads. `per_layer_config`, as transformers saves it,
    takes the place of the two keys of global layers."""
    sizes = {"head_dim": c.head_dim, "num_kv_heads": c.num_key_value_heads}
    if c.per_layer_config is not None:
        own = vars(getattr(c.per_layer_config, str(layer), SimpleNamespace()))
        if others := own.keys() - {"head_dim", "num_key_value_heads"}:
            raise ModelError(f"per_layer_config: Gemma 4 has no {min(others)} of a layer's own.")
        sizes["head_dim"] = own.get("head_dim", c.head_dim)
        sizes["num_kv_heads"] = own.get("num_key_value_heads", c.num_key_value_heads)
    elif kind == _FULL:
        sizes["head_dim"] = c.global_head_dim
        if c.attention_k_eq_v and c.num_global_key_value_heads is not None:
            sizes["num_kv_heads"] = c.num_global_key_value_heads
    return sizes


def _mixers(c: SimpleNamespace) -> list[Attention]:
    """The last layers read the KV of the last one before them of their kind."""
    kinds, ropes = _kinds(c), c.rope_parameters or _ROPES
    num_own = c.num_hidden_layers - c.num_kv_shared_layers
    last = {kind: layer for layer, kind in enumerate(kinds[:num_own])}
    if missing := {*kinds} - last.keys():
        raise ModelError(
            f"num_kv_shared_layers {c.num_kv_shared_layers}: no layer of Gemma 4 has the KV that "
            f"its layers of {min(missing)} share."
        )
    mixers = list[Attention]()
    for layer, kind in enumerate(kinds):
        sizes = _sizes(c, layer, kind)
        fields: dict[str, Any] = {
            "num_heads": c.num_attention_heads,
            "scale": 1.0,
            "rope": rope(c, sizes["head_dim"], parameters=getattr(ropes, kind)),
            "mask": Mask(c.sliding_window if kind == _LOCAL else None),
            "projections": Projections(c.attention_bias, c.attention_bias),
            "qk_norm": QkNorm(rms(c)),
            **sizes,
        }
        if layer >= num_own:
            mixers.append(KVReuse(**fields, source=last[kind]))
        elif c.attention_k_eq_v and kind == _FULL:
            mixers.append(KeyAsValueAttention(**fields))
        else:
            mixers.append(NormedValueAttention(**fields))
    return mixers


def _ffn(c: SimpleNamespace, mixer: Attention) -> Ffn:
    twice = c.use_double_wide_mlp and isinstance(mixer, KVReuse)
    dense = Glu(c.intermediate_size * (2 if twice else 1), c.hidden_activation)
    if not c.enable_moe_block:
        return dense
    chosen = Router(c.num_experts, c.top_k_experts, norm=1.0, factors=True)
    experts = Moe(chosen, Glu(c.moe_intermediate_size, c.hidden_activation))
    return ParallelMoe(dense=dense, branch=experts, norm=rms(c))
