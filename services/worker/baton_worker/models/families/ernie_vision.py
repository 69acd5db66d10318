"""ERNIE 4.5 VL: experts of their own for image tokens, Qwen2-VL's encoder, and a resampler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.moe import ernie_moe
from baton_worker.models.families.moe_common import LAYER, of_layer
from baton_worker.models.families.qwen_vision import BASE, stack_of
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.models.families.vision_language import language_model, text_of
from baton_worker.spec import (
    Decoder,
    Dense,
    Ffn,
    Fused,
    Glu,
    Merge,
    Mlp,
    ModalityMoe,
    Moe,
    Norm,
    Normed,
    Patches,
    Repeated,
    Sections,
    Step,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = BASE | {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "hidden_act": "quick_gelu",
    "rms_norm_eps": 1e-6,
}
_RESAMPLER = "resampler_model"
_MEDIA = "mlp.media"
_ENCODER = (
    (r"^(model\.)?(vision_tower|vision_model)\.", "visual."),
    (rf"^model\.{_RESAMPLER}\.", f"{_RESAMPLER}."),
)
_NAMES = tuple(
    (f"media_{role}", f"{LAYER}.{_MEDIA}_{name}")
    for role, name in (
        ("router", "gate"),
        ("router_correction", "correction"),
        *((f"expert_{part}", f"experts.{{expert}}.{part}_proj") for part in ("gate", "up", "down")),
    )
)


@architecture(
    "Ernie4_5_VLMoeForConditionalGeneration",
    "Ernie4_5_VL_MoeForConditionalGeneration",
    "Ernie4_5_VLForConditionalGeneration",
)
def ernie_vl(c: Config) -> Decoder:
    """The experts of image tokens are stored after those of texts; their router is beside."""
    t = text_of(c)
    seen, media = _both(t.moe_num_experts)
    sizes = {name: of_layer(value, 0) for name, value in vars(t).items() if name.startswith("moe_")}
    text = SimpleNamespace(**vars(t) | sizes)
    sections = Sections((22, 22, 20), "grid")
    spec = language_model(text, ernie_moe, sections, base=500_000.0, tower=True)
    width, ids = _both(t.moe_intermediate_size)[1], tuple(_media_tokens(c))
    layers = tuple((mixer, _apart(ffn, media, width, ids)) for mixer, ffn in spec.layers)
    tensors = replace(
        spec.tensors,
        names=(*spec.tensors.names, *_NAMES),
        renames=(*_renumbered(seen, media), *spec.tensors.renames),
        fused=(
            Fused(f"{LAYER}.mlp.gate", ("router",), transposed=True),
            Fused(f"{LAYER}.{_MEDIA}_gate", ("media_router",), transposed=True),
        ),
    )
    head = replace(spec.head, bias=False)
    spec = replace(spec, head=head, layers=layers, style="by_modality", tensors=tensors)
    return with_tower(spec, _tower(c, spec), _ENCODER)


def _both(given: Any) -> tuple[int, int]:
    """A number of texts and one of images."""
    return (given, given) if isinstance(given, int) else (given[0], given[1])


def _media_tokens(c: Config) -> Iterator[int]:
    """Those of images and clips, and of what begins and ends them."""
    defaults = {"image": (100_295, 101_304, 101_305), "video": (103_367, 101_306, 101_307)}
    for kind, ids in defaults.items():
        for name, default in zip(("", "_start", "_end"), ids, strict=True):
            value = getattr(c, f"{kind}{name}_token_id", None)
            yield default if value is None else int(value)


def _apart(ffn: Ffn | None, count: int, width: int, tokens: tuple[int, ...]) -> Ffn | None:
    """With experts of `width` for these tokens."""
    if not isinstance(ffn, Moe):
        return ffn
    assert isinstance(ffn.expert, Glu) and not isinstance(ffn.shared, Mlp)
    text = replace(ffn, shared=None)
    expert = replace(ffn.expert, intermediate=width)
    router = replace(ffn.router, num_experts=count)
    return ModalityMoe(text, replace(text, expert=expert, router=router), ffn.shared, tokens)


def _renumbered(seen: int, media: int) -> Iterator[tuple[str, str]]:
    """Names of the experts of images, counted from 0, and of their router."""
    stem = r"^(?:model\.)?(?:language_model\.)?layers\.(\d+)\.mlp\."
    yield rf"{stem}gate\.weight_1$", rf"model.layers.\1.{_MEDIA}_gate.weight"
    for number in range(media):
        pattern = rf"{stem}experts\.{seen + number}\."
        yield pattern, rf"model.layers.\1.{_MEDIA}_experts.{number}."


def _tower(c: Config, decoder: Decoder) -> VisionTower:
    """Merged patches twice, as two frames of a clip, and two projections."""
    v = part_of(c, "vision", _DEFAULTS)
    wide, norm = v.hidden_size * v.spatial_merge_size**2, Norm(v.rms_norm_eps, "layer", bias=True)
    steps: tuple[Step, ...] = (
        Merge(v.spatial_merge_size),
        *_normed(f"{_RESAMPLER}.spatial_linear", wide, wide, norm),
        Repeated(2),
        *_normed(f"{_RESAMPLER}.temporal_linear", 2 * wide, wide, norm),
        Dense(f"{_RESAMPLER}.mlp", wide, decoder.hidden),
        Normed(decoder.norm, decoder.hidden, f"{_RESAMPLER}.after_norm"),
    )
    token = image_token(c, 100_295)
    return VisionTower(
        stack=_stack(v, norm), projector=steps, image_token=token, hidden=decoder.hidden
    )


def _normed(name: str, inputs: int, outputs: int, norm: Norm) -> tuple[Step, ...]:
    return (
        Dense(f"{name}.0", inputs, outputs, activation="gelu"),
        Dense(f"{name}.2", outputs, outputs),
        Normed(norm, outputs, f"{name}.3"),
    )


def _stack(v: Any, norm: Norm) -> Vision:
    ffn = Mlp(v.intermediate_size, v.hidden_act, bias=True)
    patches = Patches(0, v.patch_size, positions="none", flat=True)
    up, down = "mlp.fc1", "mlp.fc2"
    stack = stack_of(v, v.hidden_size, norm, ffn, up=up, down=down, patches=patches)
    names = (*stack.tensors.names, ("norm", "visual.ln"))
    return replace(stack, final_norm=True, tensors=replace(stack.tensors, names=names))
