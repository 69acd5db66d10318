"""Gemma 3n: several streams, embeddings by layer, and KV that the last layers share."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture, decoder, gqa, rms
from baton_worker.models.families.conformers import gemma3n_audio
from baton_worker.models.families.gemma import SANDWICH, TANH, ropes_by_layer_type
from baton_worker.models.families.mobilenet import mobilenet_v5
from baton_worker.models.families.vision_common import RENAMES, image_token
from baton_worker.spec import (
    AltUp,
    Attention,
    Decoder,
    Embedding,
    Glu,
    Head,
    KVReuse,
    LayerEmbeddings,
    Mask,
    MobileTower,
    NormedValueAttention,
    QkNorm,
    SparseGlu,
    TowerPair,
)

_FULL, _LOCAL = "full_attention", "sliding_attention"
_TEXT: dict[str, Any] = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": TANH,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "altup_active_idx": 0,
    "altup_correct_scale": True,
    "altup_num_inputs": 4,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}
"""Defaults of transformers."""
_LAYER = {
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "altup_prediction": "altup.prediction_coefs",
    "altup_correction": "altup.correction_coefs",
    "altup_scale": "altup.correct_output_scale",
    "laurel_left": "laurel.linear_left",
    "laurel_right": "laurel.linear_right",
    "laurel_norm": "laurel.post_laurel_norm",
}
LAYER_EMBEDDING_NAMES = (
    ("layer_gate", "model.layers.{layer}.per_layer_input_gate"),
    ("layer_output", "model.layers.{layer}.per_layer_projection"),
    ("layer_output_norm", "model.layers.{layer}.post_per_layer_input_norm"),
    ("layer_embedding", "model.embed_tokens_per_layer"),
    ("layer_projection", "model.per_layer_model_projection"),
    ("layer_projection_norm", "model.per_layer_projection_norm"),
)
_NAMES = (
    *SANDWICH,
    *((role, f"model.layers.{{layer}}.{name}") for role, name in _LAYER.items()),
    *LAYER_EMBEDDING_NAMES,
)
_AUDIO = ("audio_tower.", "embed_audio.")
_OFFSET, _ROWS = 262_144, 128
"""Of the tokens that the encoder of images has embeddings of its own for, and their number."""


@architecture("Gemma3nForCausalLM")
def gemma3n(c: Config) -> Decoder:
    """The language model alone."""
    text = SimpleNamespace(**_TEXT | vars(c))
    mixers = _mixers(text)
    return decoder(
        text,
        mixers,
        _ffns(text),
        tied=True,
        norm=rms(text),
        head=Head(softcap=text.final_logit_softcapping),
        embedding=Embedding(scale=text.hidden_size**0.5),
        style="altup",
        altup=AltUp(
            num_streams=text.altup_num_inputs,
            active=text.altup_active_idx,
            rank=text.laurel_rank,
            scaled=text.altup_correct_scale,
        ),
        layer_embeddings=LayerEmbeddings(
            text.hidden_size_per_layer_input,
            text.vocab_size_per_layer_input,
            text.hidden_activation,
        ),
        names=_NAMES,
        unused=unread_kv(mixers),
    )


@architecture("Gemma3nForConditionalGeneration")
def gemma3n_multimodal(c: Config) -> Decoder:
    """For texts, images and sounds; for the latter if the config has their encoder."""
    served = {"served_length": getattr(c, "served_length", None)}
    whole = gemma3n(SimpleNamespace(**vars(part_of(c, "text", _TEXT)) | served))
    has_audio = getattr(c, "audio_config", None) is not None
    tensors = replace(
        whole.tensors,
        renames=((r"^model\.(audio_tower|embed_vision|embed_audio)\.", r"\1."), *RENAMES),
        unused=(*whole.tensors.unused, *(() if has_audio else _AUDIO)),
    )
    vision = _tower(c, whole.hidden)
    tower = TowerPair(vision, gemma3n_audio(c, whole.hidden)) if has_audio else vision
    return replace(whole, tensors=tensors, tower=tower)


def _tower(c: Config, hidden: int) -> MobileTower:
    vision_config = vars(getattr(c, "vision_config", None) or SimpleNamespace())
    named = vision_config.get("architecture", "mobilenetv5_300m_enc")
    if named != "mobilenetv5_300m_enc":
        raise AttributeError(f"vision_config.architecture {named} is not mobilenetv5_300m_enc")
    side = math.isqrt(getattr(c, "vision_soft_tokens_per_image", None) or 256)
    offset, rows = (
        vision_config.get("vocab_offset", _OFFSET),
        vision_config.get("vocab_size", _ROWS),
    )
    end = getattr(c, "eoi_token_id", None) or _OFFSET
    if not 0 <= end - offset < rows:
        raise AttributeError(f"eoi_token_id {end} is not among the {rows} tokens from {offset} on")
    return mobilenet_v5(
        vars(vision_config.get("model_args") or SimpleNamespace()),
        side,
        embedder="embed_vision",
        width=vision_config.get("hidden_size", 2048),
        eps=vision_config.get("rms_norm_eps", 1e-6),
        hidden=hidden,
        table=rows,
        end_row=end - offset,
        image_token=image_token(c, 262_145),
        end_token=end,
    )


def _mixers(c: SimpleNamespace) -> list[Attention]:
    """The last layers read the KV of the last one before them that sees as far."""
    kinds = getattr(c, "layer_types", None) or [
        _LOCAL if (layer + 1) % 5 else _FULL for layer in range(c.num_hidden_layers)
    ]
    plain = gqa(c, bias=getattr(c, "attention_bias", False), scale=1.0, rope=None)
    by_kind = {
        kind: replace(
            plain,
            rope=turned,
            mask=Mask(c.sliding_window if kind == _LOCAL else None),
            qk_norm=QkNorm(rms(c)),
        )
        for kind, turned in ropes_by_layer_type(c, plain.head_dim).items()
    }
    num_own = c.num_hidden_layers - c.num_kv_shared_layers
    last = {kind: layer for layer, kind in enumerate(kinds[:num_own])}
    return [
        KVReuse(**_fields(by_kind[kind]), source=last[kind])
        if layer >= num_own
        else NormedValueAttention(**_fields(by_kind[kind]))
        for layer, kind in enumerate(kinds)
    ]


def _fields(attention: Attention) -> dict[str, Any]:
    return {name: getattr(attention, name) for name in Attention.__dataclass_fields__}


def _ffns(c: SimpleNamespace) -> list[Glu]:
    count, sizes = c.num_hidden_layers, c.intermediate_size
    sizes = list(sizes) if isinstance(sizes, list | tuple) else [sizes] * count
    sparsity = getattr(c, "activation_sparsity_pattern", None)
    if sparsity is None:
        sparsity = [0.95 if count > 10 and layer < 10 else 0.0 for layer in range(count)]
    act = c.hidden_activation
    return [
        SparseGlu(size, act, sparsity=share) if share else Glu(size, act)
        for size, share in zip(sizes, sparsity, strict=True)
    ]


def unread_kv(mixers: list[Attention]) -> tuple[str, ...]:
    """Tensors of keys and values in layers that read others'."""
    return tuple(
        f"model.layers.{layer}.self_attn.{part}"
        for layer, mixer in enumerate(mixers)
        if isinstance(mixer, KVReuse)
        for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    )
