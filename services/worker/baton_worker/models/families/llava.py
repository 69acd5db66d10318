"""LLaVA (Liu et al. 2023, arXiv:2304.08485): a language model that sees through CLIP."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import clip_vision
from baton_worker.models.families.common import Config, Family, architecture
from baton_worker.models.families.llama import llama, mistral, qwen2
from baton_worker.models.families.vision_language import text_of
from baton_worker.spec import Decoder, Dense, VisionTower

_TEXTS: dict[str, Family] = {"llama": llama, "mistral": mistral, "qwen2": qwen2}
"""Families of the language model, by its model type."""
_LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
}
"""Defaults of transformers, which published configs leave out."""
_RENAMES = (
    (r"^model\.(language_model|vision_tower|multi_modal_projector)\.", r"\1."),
    (r"^language_model\.(model|lm_head)\.", r"\1."),
    (r"^language_model\.", "model."),
    (r"^vision_tower\.vision_model\.", "vision_tower."),
)
_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"


@architecture("LlavaForConditionalGeneration")
def llava(c: Config) -> Decoder:
    """The states of one layer of CLIP through two projections."""
    text = _text(c)
    decoder = _TEXTS[text.model_type](text)
    tower = _tower(c, decoder.hidden)
    skipped = range(len(tower.stack.layers), c.vision_config.num_hidden_layers)
    unused = (
        f"{_TOWER}.post_layernorm.",
        f"{_TOWER}.embeddings.position_ids",
        *(f"{_TOWER}.encoder.layers.{layer}." for layer in skipped),
    )
    tensors = replace(
        decoder.tensors,
        renames=(*_RENAMES, *decoder.tensors.renames),
        unused=(*decoder.tensors.unused, *unused),
    )
    return replace(decoder, tensors=tensors, tower=tower)


def _text(c: Config) -> Config:
    kind = getattr(c.text_config, "model_type", "llama")
    if kind not in _TEXTS:
        raise AttributeError(f"text_config.model_type {kind} is not one of {', '.join(_TEXTS)}")
    defaults = _LLAMA if kind == "llama" else {}
    return SimpleNamespace(**defaults | vars(text_of(c)) | {"model_type": kind})


def _tower(c: Config, hidden: int) -> VisionTower:
    kind = getattr(c.vision_config, "model_type", "clip_vision_model")
    if kind != "clip_vision_model":
        raise AttributeError(f"vision_config.model_type {kind} is not clip_vision_model")
    stack, bias = clip_vision(c, _TOWER), getattr(c, "multimodal_projector_bias", True)
    act = getattr(c, "projector_hidden_act", "gelu")
    return VisionTower(
        stack=replace(stack, layers=stack.layers[: _depth(c, len(stack.layers))], final_norm=False),
        projector=(
            Dense(f"{_PROJECTOR}.linear_1", stack.hidden, hidden, bias=bias, activation=act),
            Dense(f"{_PROJECTOR}.linear_2", hidden, hidden, bias=bias),
        ),
        image_token=getattr(c, "image_token_index", 32_000),
        drops_class_token=getattr(c, "vision_feature_select_strategy", "default") == "default",
    )


def _depth(c: Config, num_layers: int) -> int:
    """Number of layers that run: `vision_feature_layer` counts the input as state 0."""
    layer = getattr(c, "vision_feature_layer", -2)
    if not isinstance(layer, int):
        raise AttributeError("vision_feature_layer must be one number")
    return layer if layer >= 0 else num_layers + 1 + layer
