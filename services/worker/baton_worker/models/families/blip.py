"""BLIP-2 (Li et al. 2023, arXiv:2301.12597): queries that attend to a frozen tower."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError
from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.vision_common import image_token, text_model, with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Fused,
    Head,
    Mlp,
    Norm,
    Patches,
    Projections,
    QFormer,
    TensorLayout,
    Vision,
    VisionTower,
)

_VISION: dict[str, Any] = {
    "hidden_size": 1408,
    "intermediate_size": 6144,
    "num_hidden_layers": 39,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 14,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
}
_QFORMER: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "cross_attention_frequency": 2,
}
"""Defaults of transformers."""
_LAYER = "vision_model.encoder.layers.{layer}"
_NAMES = {
    "patches": "vision_model.embeddings.patch_embedding",
    "class_token": "vision_model.embeddings.class_embedding",
    "positions": "vision_model.embeddings.position_embedding",
    "norm": "vision_model.post_layernorm",
    "mixer_norm": f"{_LAYER}.layer_norm1",
    "output": f"{_LAYER}.self_attn.projection",
    "ffn_norm": f"{_LAYER}.layer_norm2",
    "up": f"{_LAYER}.mlp.fc1",
    "down": f"{_LAYER}.mlp.fc2",
}


@architecture("Blip2ForConditionalGeneration")
def blip2(c: Config) -> Decoder:
    """Each image becomes `num_query_tokens` embeddings for OPT."""
    kind = getattr(getattr(c, "text_config", None), "model_type", "opt")
    if kind == "t5":
        raise ModelError(
            "The text model of this BLIP-2 checkpoint is T5, an encoder with a decoder, which is "
            "not supported. Serve a BLIP-2 checkpoint with OPT, as Salesforce/blip2-opt-2.7b."
        )
    decoder, stack = text_model(c, "opt", tied=True), _stack(c)
    qformer = _qformer(c, stack.hidden)
    tower = VisionTower(
        stack=stack,
        projector=(qformer, Dense("language_projection", qformer.width, decoder.hidden)),
        image_token=image_token(c, 50_265, "<image>"),
        hidden=decoder.hidden,
    )
    return with_tower(decoder, tower, unused=_texts_of(qformer))


def _stack(c: Config) -> Vision:
    v = part_of(c, "vision", _VISION)
    dim = v.hidden_size // v.num_attention_heads
    attention = Attention(
        v.num_attention_heads,
        v.num_attention_heads,
        dim,
        1 / math.sqrt(dim),
        None,
        projections=Projections(bias=v.qkv_bias, output_bias=True),
    )
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Mlp(v.intermediate_size, v.hidden_act, bias=True)),)
        * v.num_hidden_layers,
        norm=Norm(v.layer_norm_eps, "layer", bias=True),
        head=Head(tied=True),
        patches=Patches(v.image_size, v.patch_size, bias=True, class_token=True, stored="batched"),
        tensors=TensorLayout(
            names=tuple(_NAMES.items()), fused=(Fused(f"{_LAYER}.self_attn.qkv", QKV),)
        ),
    )


def _qformer(c: Config, inputs: int) -> QFormer:
    q: SimpleNamespace = part_of(c, "qformer", _QFORMER)
    return QFormer(
        name="qformer",
        queries_name="query_tokens",
        queries=getattr(c, "num_query_tokens", 32),
        inputs=inputs,
        width=q.hidden_size,
        num_heads=q.num_attention_heads,
        num_layers=q.num_hidden_layers,
        frequency=q.cross_attention_frequency,
        ffn=Mlp(q.intermediate_size, q.hidden_act, bias=True),
        norm=Norm(q.layer_norm_eps, "layer", bias=True),
    )


def _texts_of(qformer: QFormer) -> tuple[str, ...]:
    """Tensors by which a Q-Former reads texts; transformers skips them for captions, too."""
    layers = [f"{qformer.name}.encoder.layer.{layer}" for layer in range(qformer.num_layers)]
    parts = [f"{layer}.{part}." for layer in layers for part in ("intermediate", "output")]
    return (f"{qformer.name}.embeddings.", *parts)
