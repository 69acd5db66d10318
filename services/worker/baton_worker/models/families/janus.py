"""DeepSeek-VL (arXiv:2403.05525) and Janus (arXiv:2410.13848): SigLIP's tower and two projections
beside Llama. What makes images in Janus is left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of, siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.vision_common import (
    RENAMES,
    image_token,
    text_model,
    with_tower,
)
from baton_worker.spec import Decoder, Dense, Step, VisionTower

_TOWER = "vision_model"
_ALIGNER = ((r"^model\.aligner\.", "aligner."),)
_OUTPUT = "self_attn.projection_layer"
_JANUS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 384,
    "hidden_act": "gelu",
    "mlp_ratio": 4.0,
    "attention_bias": True,
    "use_qk_norm": False,
    "projection_dim": 2048,
    "depth": 2,
}
_IMAGE_OUTPUT = (
    "vqmodel.",
    "generation_embeddings.",
    "generation_aligner.",
    "generation_head.",
)


@architecture("DeepseekVLForConditionalGeneration")
def deepseek_vl(c: Config) -> Decoder:
    """The final states of SigLIP."""
    decoder, stack = text_model(c, tied=True), siglip_vision(c, _TOWER)
    steps = (
        Dense("aligner.linear1", stack.hidden, decoder.hidden, activation="gelu"),
        Dense("aligner.linear2", decoder.hidden, decoder.hidden),
    )
    tower = VisionTower(
        stack=stack,
        projector=steps,
        image_token=image_token(c, 100_015),
        hidden=decoder.hidden,
    )
    return with_tower(decoder, tower, (*_ALIGNER, *RENAMES), (f"{_TOWER}.head.",))


@architecture("JanusForConditionalGeneration")
def janus(c: Config) -> Decoder:
    """The config of the tower counts the projections, and gives their activation."""
    decoder, v = text_model(c, tied=True), part_of(c, "vision", _JANUS)
    if v.use_qk_norm or not v.attention_bias:
        raise AttributeError("vision_config with use_qk_norm, or without attention_bias")
    v.intermediate_size = int(v.hidden_size * v.mlp_ratio)
    stack = siglip_vision(SimpleNamespace(vision_config=v), _TOWER)
    names = {**dict(stack.tensors.names), "output": f"{_TOWER}.encoder.layers.{{layer}}.{_OUTPUT}"}
    stack = replace(stack, tensors=replace(stack.tensors, names=tuple(names.items())))
    tower = VisionTower(
        stack=stack,
        projector=_aligner(v),
        image_token=image_token(c, 100_581),
        hidden=decoder.hidden,
    )
    unused = (*_IMAGE_OUTPUT, *(f"model.{name}" for name in _IMAGE_OUTPUT))
    return with_tower(decoder, tower, (*_ALIGNER, *RENAMES), unused)


def _aligner(v: Any) -> tuple[Step, ...]:
    """The activation is between the projections."""
    wide = v.projection_dim
    names = ["aligner.fc1", *(f"aligner.hidden_layers.{n}" for n in range(v.depth - 1))]
    sizes = pairwise([v.hidden_size, *[wide] * v.depth])
    steps = [Dense(name, *size) for name, size in zip(names, sizes, strict=True)]
    return (*(replace(step, activation=v.hidden_act) for step in steps[:-1]), steps[-1])
