"""Llama 3.2 Vision (arXiv:2407.21783): some layers attend to images, and to nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import llama
from baton_worker.models.families.vision_common import RENAMES
from baton_worker.spec import (
    Attention,
    CrossAttention,
    Decoder,
    Dense,
    Norm,
    QkNorm,
    TiledTower,
)

_TEXT: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    "tie_word_embeddings": False,
}
_VISION: dict[str, Any] = {
    "hidden_size": 1280,
    "hidden_act": "gelu",
    "num_hidden_layers": 32,
    "num_global_layers": 8,
    "attention_heads": 16,
    "intermediate_size": 5120,
    "image_size": 448,
    "patch_size": 14,
    "norm_eps": 1e-5,
    "max_num_tiles": 4,
    "intermediate_layers_indices": [3, 7, 15, 23, 30],
    "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
}
"""Defaults of transformers."""
_SPECIAL = 8
"""Rows of the table of embeddings behind the vocabulary, of the image token among others."""


@architecture("MllamaForConditionalGeneration")
def mllama(c: Config) -> Decoder:
    """Tokens before the first image go past the layers that attend to images, as in Meta's code;
    transformers lets them see all of the images behind them."""
    served = {"served_length": getattr(c, "served_length", None)}
    text = SimpleNamespace(**vars(part_of(c, "text", _TEXT)) | served)
    if text.tie_word_embeddings:
        raise AttributeError("tie_word_embeddings, which must be false")
    decoder, crossing = llama(text), set(text.cross_attention_layers)
    layers = tuple(
        (_across(mixer, decoder), ffn) if layer in crossing else (mixer, ffn)
        for layer, (mixer, ffn) in enumerate(decoder.layers)
    )
    return replace(
        decoder,
        vocab=decoder.vocab + _SPECIAL,
        head=replace(decoder.head, unsaid=_SPECIAL),
        layers=layers,
        style="gated_cross",
        tensors=replace(decoder.tensors, renames=(*RENAMES, *decoder.tensors.renames)),
        tower=_tower(c, decoder.hidden),
    )


def _across(mixer: Any, decoder: Decoder) -> CrossAttention:
    assert isinstance(mixer, Attention)
    return CrossAttention(
        num_heads=mixer.num_heads,
        num_kv_heads=mixer.num_kv_heads,
        head_dim=mixer.head_dim,
        scale=mixer.scale,
        states=decoder.hidden,
        qk_norm=QkNorm(Norm(decoder.norm.eps)),
    )


def _tower(c: Config, hidden: int) -> TiledTower:
    v = part_of(c, "vision", _VISION)
    taps = tuple(v.intermediate_layers_indices)
    return TiledTower(
        prefix="vision_model",
        image=v.image_size,
        patch=v.patch_size,
        hidden=v.hidden_size,
        num_heads=v.attention_heads,
        intermediate=v.intermediate_size,
        activation=v.hidden_act,
        eps=v.norm_eps,
        num_layers=v.num_hidden_layers,
        num_global_layers=v.num_global_layers,
        taps=taps,
        most_tiles=v.max_num_tiles,
        shapes=tuple((rows, columns) for rows, columns in v.supported_aspect_ratios),
        projector=Dense("multi_modal_projector", v.hidden_size * (1 + len(taps)), hidden),
        image_token=int(getattr(c, "image_token_index", 128_256)),
    )
