"""Llama 3.2 Vision (arXiv:2407.21783), without images: the layers that attend to them are skipped.

The states of an image would need KV of their own, beside that of the text.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.logs import logger
from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import llama
from baton_worker.models.families.vision_common import RENAMES
from baton_worker.spec import Decoder

log = logger(__name__)
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
"""Defaults of transformers."""


@architecture("MllamaForConditionalGeneration")
def mllama(c: Config) -> Decoder:
    """The table of embeddings has rows behind the vocabulary, of the image token among others."""
    served = {"served_length": getattr(c, "served_length", None)}
    text = SimpleNamespace(**vars(part_of(c, "text", _TEXT)) | served)
    if text.tie_word_embeddings:
        raise AttributeError("tie_word_embeddings, which must be false")
    log.warning("The encoder of images stays unread: texts are served, images are refused.")
    decoder, skipped = llama(text), set(text.cross_attention_layers)
    layers = tuple(
        (None, None) if layer in skipped else parts for layer, parts in enumerate(decoder.layers)
    )
    unread = tuple(f"model.layers.{layer}." for layer in sorted(skipped))
    tensors = replace(
        decoder.tensors,
        renames=(*RENAMES, *decoder.tensors.renames),
        unused=("vision_model.", "multi_modal_projector.", *unread),
        longer=("model.embed_tokens",),
    )
    return replace(decoder, layers=layers, tensors=tensors)
