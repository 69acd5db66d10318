"""Common parts of models with towers: the text model of a config, and its tower."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import DECLARED, Config
from baton_worker.spec import Attention, Decoder, Dense, Mixer, Step, Tower

_PARTS = (
    *("vision_tower", "vision_model", "multi_modal_projector", "mm_projector", "connector"),
    *("audio_tower", "language_model", "text_model", "image_newline"),
)
RENAMES = (
    (rf"^model\.({'|'.join(_PARTS)})", r"\1"),
    (r"^language_model\.(model|lm_head)\.", r"\1."),
    (r"^(language_model|text_model)\.", "model."),
    (r"^(vision_tower|vision_model)\.vision_model\.", r"\1."),
)
"""Prefixes of the parts in current and older versions of transformers."""

TEXTS = {
    "cohere2": "Cohere2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone4_5_text": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "mistral": "MistralForCausalLM",
    "opt": "OPTForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "step3_text": "Step3TextForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
}
"""Architecture of a text model, by its model type."""
_SEVEN_B: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}
_GEMMA: dict[str, Any] = {
    "vocab_size": 256_000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _SEVEN_B
    | {"intermediate_size": 11_008, "num_key_value_heads": 32, "max_position_embeddings": 2048},
    "mistral": _SEVEN_B
    | {"intermediate_size": 14_336, "num_key_value_heads": 8}
    | {"max_position_embeddings": 4096 * 32},
    "qwen2": _SEVEN_B
    | {"vocab_size": 151_936, "intermediate_size": 22_016, "num_key_value_heads": 32}
    | {"max_position_embeddings": 32_768},
    "opt": {
        "vocab_size": 50_272,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
    },
    "gemma": _GEMMA
    | {"hidden_size": 3072, "intermediate_size": 24_576, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "num_key_value_heads": 16},
    "gemma2": _GEMMA
    | {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
    | {"num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
    },
}
"""Defaults of transformers, which published configs leave out."""


def text_config(c: Config, kind: str = "llama", *, tied: bool = False) -> Config:
    """The part of a config for its text model; `kind` and `tied` are the architecture's defaults.

    Older configs say in one part that embeddings are tied, newer ones in the other.

    Raises:
        AttributeError: no family has that model type.
    """
    part = getattr(c, "text_config", None) or SimpleNamespace()
    kind = getattr(part, "model_type", kind)
    if kind not in TEXTS:
        raise AttributeError(f"text_config.model_type {kind} is not one of {', '.join(TEXTS)}")
    both = [getattr(some, "tie_word_embeddings", None) for some in (c, part)]
    flags = [some for some in both if some is not None]
    fields = DEFAULTS.get(kind, {}) | {"served_length": getattr(c, "served_length", None)}
    changes = {"model_type": kind, "tie_word_embeddings": any(flags) if flags else tied}
    return SimpleNamespace(**fields | vars(part) | changes)


def text_model(c: Config, kind: str = "llama", *, tied: bool = False) -> Decoder:
    """The text model of a config, see `text_config`."""
    text = text_config(c, kind, tied=tied)
    module, _, name = DECLARED[TEXTS[text.model_type]].partition(":")
    model: Decoder = getattr(importlib.import_module(module), name)(text)
    return model


def with_tower(
    decoder: Decoder,
    tower: Tower,
    renames: Sequence[tuple[str, str]] = RENAMES,
    unused: Sequence[str] = (),
) -> Decoder:
    """A text model with a tower; `unused` are prefixes of tensors of the tower that may stay
    unread."""
    tensors = replace(
        decoder.tensors,
        renames=(*renames, *decoder.tensors.renames),
        unused=(*decoder.tensors.unused, *unused),
    )
    return replace(decoder, tensors=tensors, tower=tower)


def with_spans(decoder: Decoder) -> Decoder:
    """A text model in which the tokens of an image see one another in both directions."""

    def both_ways(mixer: Mixer | None) -> Mixer | None:
        if not isinstance(mixer, Attention):
            return mixer
        return replace(mixer, mask=replace(mixer.mask, spans=True))

    layers = tuple((both_ways(mixer), ffn) for mixer, ffn in decoder.layers)
    return replace(decoder, layers=layers)


def two_layers(
    c: Config, inputs: int, hidden: int, prefix: str = "multi_modal_projector", bias: bool = True
) -> tuple[Step, ...]:
    """LLaVA's projector: a hidden layer as wide as the text model."""
    act = getattr(c, "projector_hidden_act", "gelu")
    return (
        Dense(f"{prefix}.linear_1", inputs, hidden, bias=bias, activation=act),
        Dense(f"{prefix}.linear_2", hidden, hidden, bias=bias),
    )


def image_token(c: Config, default: int, text: str = "") -> int:
    """The placeholder token of an embedding: from the config, under its new or its old name, else
    the added token of this `text`, else the architecture's default."""
    return _token(c, "image", getattr(c, "added_tokens", {}).get(text, default))


def audio_token(c: Config, default: int) -> int:
    """The token in whose place an embedding of a sound goes, under its new or its old name."""
    return _token(c, "audio", default)


def video_token(c: Config, default: int) -> int:
    """The token in whose place an embedding of a video goes, under its new or its old name."""
    return _token(c, "video", default)


def _token(c: Config, kind: str, default: int) -> int:
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        value = getattr(c, name, None)
        if value is not None:
            return int(value)
    return default
