"""VILA (arXiv:2312.07533) and NVILA (arXiv:2412.04468): SigLIP, windows of patches side by side,
and a language model, each in a folder of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llava import tower, unread
from baton_worker.models.families.vision_common import RENAMES, image_token, text_model, with_tower
from baton_worker.spec import Decoder, Dense, Norm, Normed, Step, Unfold

_RENAMES = (
    (r"^llm\.", ""),
    (r"^vision_tower\.vision_tower\.", "vision_tower."),
    *RENAMES,
)
_WINDOWS = {"mlp_downsample_2x2_fix": 2, "mlp_downsample_3x3_fix": 3}
_IMAGE_TOKEN = 151_649
ASPECTS = ("resize", "dynamic")
"""The treatment of images of other aspect ratios."""


@architecture("LlavaLlamaModel")
def vila(c: Config) -> Decoder:
    """The states of a layer near the last, in windows whose states become one vector."""
    if getattr(c, "s2", None) or getattr(c, "dynamic_s2", None) or getattr(c, "ps3", None):
        raise AttributeError("s2, dynamic_s2 or ps3 is true: images of several scales are unknown")
    if c.image_aspect_ratio not in ASPECTS:
        raise AttributeError(f"image_aspect_ratio {c.image_aspect_ratio} is unknown")
    if c.vision_tower_cfg.model_type == "siglip_vision_model" and _drops_first(c):
        raise AttributeError("mm_vision_select_feature patch would drop a patch of SigLIP")
    as_llava = _as_llava(c)
    decoder = text_model(as_llava, "qwen2")
    token = image_token(c, _IMAGE_TOKEN, "<image>")
    vision = tower(as_llava, decoder.hidden, kind="siglip_vision_model", token=token)
    steps = _projector(c.mm_projector_cfg.mm_projector_type, vision.stack.hidden, decoder.hidden)
    return with_tower(decoder, replace(vision, projector=steps), _RENAMES, unread(as_llava))


def _as_llava(c: Config) -> Config:
    """The config under LLaVA's names."""
    fields: dict[str, Any] = {
        "text_config": c.llm_cfg,
        "vision_config": c.vision_tower_cfg,
        "vision_feature_layer": getattr(c, "mm_vision_select_layer", -2),
        "vision_feature_select_strategy": "default" if _drops_first(c) else "full",
        "served_length": getattr(c, "served_length", None),
    }
    return SimpleNamespace(**fields)


def _drops_first(c: Config) -> bool:
    """Whether the first state of an image, CLIP's class token, is left out."""
    return bool(getattr(c, "mm_vision_select_feature", "patch") == "patch")


def _projector(kind: str, inputs: int, hidden: int) -> tuple[Step, ...]:
    """The steps, which are numbered as in the checkpoint."""
    if kind in _WINDOWS:
        size = _WINDOWS[kind]
        wide = inputs * size**2
        inner = [hidden] if size == 2 else [3 * inputs, hidden]
        return (Unfold(size, "concat"), *_layers([wide, *inner, hidden], normed=len(inner)))
    plain = re.fullmatch(r"mlp(\d+)x_gelu", kind)
    if plain is None:
        known = ", ".join((*_WINDOWS, "mlp2x_gelu"))
        raise AttributeError(f"mm_projector_type {kind} is not one of {known}")
    return _layers([inputs, *[hidden] * int(plain[1])], normed=0)


def _layers(widths: list[int], normed: int) -> tuple[Step, ...]:
    """Projections with an activation between them, the first `normed` ones with a norm before."""
    steps, number = list[Step](), 1 if normed else 0
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        if layer < normed:
            norm = Norm(1e-5, "layer", bias=True)
            steps.append(Normed(norm, inputs, f"mm_projector.layers.{number}"))
            number += 1
        last = layer == len(widths) - 2
        act = "identity" if last else "gelu"
        steps.append(Dense(f"mm_projector.layers.{number}", inputs, outputs, activation=act))
        number += 2
    return tuple(steps)
