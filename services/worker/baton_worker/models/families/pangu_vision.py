"""openPangu-VL: Qwen2.5-VL's encoder, whose states behind several layers are merged and summed."""

from __future__ import annotations

from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import pangu
from baton_worker.models.families.qwen_vision import BASE, RENAMES, stack_of
from baton_worker.models.families.vision_common import with_tower
from baton_worker.models.families.vision_language import language_model, text_of
from baton_worker.spec import (
    Activated,
    Decoder,
    Dense,
    Glu,
    Merge,
    Mlp,
    Norm,
    Normed,
    Sections,
    Step,
    Summed,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = BASE | {
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "out_hidden_size": 3584,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "window_size": 112,
    "fullatt_block_indexes": (7, 15, 23, 31),
    "mm_unit_vision_select_layer": (-1, -3),
    "use_gatedmerger": False,
}


@architecture("OpenPanguVLForConditionalGeneration")
def openpangu_vl(c: Config) -> Decoder:
    """The text model of openPangu Embedded; axes of its rope take turns by their shares."""
    text = text_of(c)
    rope_parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    sizes = getattr(rope_parameters, "mrope_section", None)
    if not sizes:
        raise AttributeError("rope_scaling.mrope_section")
    turns = getattr(rope_parameters, "mrope_interleaved", False)
    sections = Sections(tuple(sizes), "balanced" if turns else "runs")
    decoder = language_model(c, pangu, sections)
    return with_tower(decoder, _tower(c, decoder.hidden), RENAMES)


def _tower(c: Config, hidden: int) -> VisionTower:
    v = part_of(c, "vision", _DEFAULTS)
    if v.use_gatedmerger:
        raise AttributeError("use_gatedmerger: true is not supported")
    norm = Norm(v.rms_norm_eps)
    layers = sorted(v.depth + layer for layer in v.mm_unit_vision_select_layer)
    shared = (Normed(norm, v.hidden_size, "visual.final_layernorm"),)
    mergers = tuple(_merger(v, norm, number) for number in reversed(range(len(layers))))
    projection = Dense("visual.vision_projection.fc1", v.out_hidden_size, hidden)
    ffn = (Glu if v.hidden_act == "silu" else Mlp)(v.intermediate_size, v.hidden_act, bias=True)
    return VisionTower(
        stack=stack_of(v, v.hidden_size, norm, ffn, up="mlp.up_proj", down="mlp.down_proj"),
        projector=(Summed(shared, mergers), Activated("silu"), projection),
        image_token=c.image_token_id,
        hidden=hidden,
        taps=tuple(layer + 1 for layer in layers),
        window=v.window_size // v.patch_size,
        full_layers=tuple(v.fullatt_block_indexes),
    )


def _merger(v: Any, norm: Norm, number: int) -> tuple[Step, ...]:
    """The first one takes the last of the layers."""
    name, size = f"visual.merger.{number}", v.spatial_merge_size
    inner = v.hidden_size * size**2
    return (
        Normed(norm, v.hidden_size, f"{name}.ln_q"),
        Merge(size),
        Dense(f"{name}.mlp.0", inner, inner, activation="gelu"),
        Dense(f"{name}.mlp.2", inner, v.out_hidden_size),
    )
