"""Keye-VL (arXiv:2507.01949), Keye-VL 1.5 (arXiv:2509.01563), PaddleOCR-VL (arXiv:2510.14528) and
VideoLLaMA 3 (arXiv:2501.13106): SigLIP for images of any size."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import ernie, qwen3
from baton_worker.models.families.qwen_vision import RENAMES
from baton_worker.models.families.vision_common import RENAMES as _PARTS
from baton_worker.models.families.vision_common import image_token, text_model, with_tower
from baton_worker.models.families.vision_language import language_model
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Merge,
    Mixer,
    Norm,
    Normed,
    Rope,
    Sections,
    Step,
    Vision,
    VisionTower,
)

_TOWER = "visual.vision_model"
_UNUSED = (f"{_TOWER}.head.", f"{_TOWER}.embeddings.packing_position_embedding")
_PADDLE = (*RENAMES, (r"^(model\.)?projector\.", "mlp_AR."))
_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}


@architecture("KeyeForConditionalGeneration")
def keye(c: Config) -> Decoder:
    """Patches are normed before they are merged."""
    return _keye(c, merged_first=False)


@architecture("KeyeVL1_5ForConditionalGeneration")
def keye_1_5(c: Config) -> Decoder:
    """Patches are normed behind the merge."""
    return _keye(c, merged_first=True)


@architecture("PaddleOCRVLForConditionalGeneration")
def paddleocr_vl(c: Config) -> Decoder:
    """ERNIE 4.5 with rotated halves of heads."""
    decoder = language_model(c, _half_split_ernie, Sections((16, 24, 24)), base=500_000.0)
    tower = _tower(c, decoder.hidden, merged_first=False, token=100_295)
    return with_tower(decoder, tower, _PADDLE, _UNUSED)


@architecture("VideoLlama3ForConditionalGeneration")
def video_llama_3(c: Config) -> Decoder:
    """Each patch of an image becomes a vector, and rows and columns are its only positions."""
    decoder, stack = text_model(c, "qwen2"), _turned(siglip_vision(c, "vision_model"), _theta(c))
    stack = replace(stack, patches=replace(stack.patches, positions="none"))
    hidden = decoder.hidden
    steps = (
        Dense("projector.readout.0", stack.hidden, hidden, activation="gelu"),
        Dense("projector.readout.2", hidden, hidden),
    )
    tower = VisionTower(
        stack=stack, projector=steps, image_token=image_token(c, 151_655), hidden=hidden
    )
    return with_tower(decoder, tower, (*_PARTS, (r"^model\.projector\.", "projector.")))


def _theta(c: Config) -> float:
    parameters = getattr(c.vision_config, "rope_parameters", None) or SimpleNamespace()
    kind = getattr(parameters, "rope_type", "axial")
    if kind != "axial":
        raise AttributeError(f"rope_type {kind} in vision_config, as there is axial alone")
    return float(getattr(parameters, "rope_theta", 10_000.0))


def _half_split_ernie(c: Config) -> Decoder:
    decoder = ernie(c)
    layers = tuple((_half_split(mixer), ffn) for mixer, ffn in decoder.layers)
    return replace(decoder, layers=layers)


def _half_split(mixer: Mixer | None) -> Mixer | None:
    assert isinstance(mixer, Attention) and mixer.rope is not None
    return replace(mixer, rope=replace(mixer.rope, interleaved=False))


def _keye(c: Config, *, merged_first: bool) -> Decoder:
    decoder = language_model(c, qwen3, Sections((16, 24, 24)), base=1_000_000.0)
    tower = _tower(c, decoder.hidden, merged_first=merged_first, token=151_655)
    return with_tower(decoder, tower, (), _UNUSED)


def _tower(c: Config, hidden: int, *, merged_first: bool, token: int) -> VisionTower:
    stack, norm = _stack(c), Norm(1e-5, "layer", bias=True)
    size = getattr(c.vision_config, "spatial_merge_size", 2)
    inner = stack.hidden * size**2
    normed = Normed(norm, inner if merged_first else stack.hidden, "mlp_AR.pre_norm")
    merge = Merge(size)
    steps: tuple[Step, ...] = (
        *((merge, normed) if merged_first else (normed, merge)),
        Dense("mlp_AR.linear_1", inner, inner, activation="gelu"),
        Dense("mlp_AR.linear_2", inner, hidden),
    )
    return VisionTower(
        stack=stack, projector=steps, image_token=image_token(c, token), hidden=hidden
    )


def _stack(c: Config) -> Vision:
    """SigLIP with resized positions, beside which rows and columns turn queries and keys."""
    stack = _turned(siglip_vision(c, _TOWER, _DEFAULTS), 10_000.0)
    return replace(stack, patches=replace(stack.patches, positions="bilinear"))


def _turned(stack: Vision, theta: float) -> Vision:
    """Rows and columns turn queries and keys."""
    attention, ffn = stack.layers[0]
    assert isinstance(attention, Attention)
    dim = attention.head_dim
    rope = Rope(dim, theta, 0, "axial", sections=Sections((dim // 4, dim // 4)))
    layer = replace(attention, rope=rope), ffn
    return replace(stack, layers=(layer,) * len(stack.layers))
