"""The video processors of transformers, on the few functions of torchvision that they call.

torchvision is not installed. What its `resize` and `normalize` do to uint8 frames on a CPU is one
call of torch each, which this file has in their place.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


def resize(image: Any, size: Any, interpolation: str, antialias: bool) -> Any:
    """uint8 [..., C, H, W] to this size, as torchvision.transforms.v2.functional.resize."""
    import torch

    if list(image.shape[-2:]) == list(size):
        return image
    flat = image.reshape(-1, *image.shape[-3:])
    out = torch.nn.functional.interpolate(
        flat, list(size), mode=interpolation, align_corners=False, antialias=antialias
    )
    return out.reshape(*image.shape[:-2], *size)


def normalize(image: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    """(image - mean) / std by channel."""
    import torch

    mean, std = (torch.as_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (mean, std))
    return (image - mean) / std


def crop(image: Any, top: int, left: int, height: int, width: int) -> Any:
    """A part of the image."""
    return image[..., top : top + height, left : left + width]


def pad(image: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    """Pixels left, above, right and below, as torchvision.transforms.v2.functional.pad."""
    import torch

    left, above, right, below = padding
    sides = (left, right, above, below)
    return torch.nn.functional.pad(image, sides, mode=padding_mode, value=fill or 0)


_MODES = SimpleNamespace(BILINEAR="bilinear", BICUBIC="bicubic", LANCZOS="lanczos")
_FUNCTIONS = {
    "resize": resize,
    "normalize": normalize,
    "crop": crop,
    "pad": pad,
    "grayscale_to_rgb": lambda image: image,
    "InterpolationMode": _MODES,
}


@contextmanager
def _importable() -> Iterator[ModuleType]:
    """Modules of this name, as long as transformers imports them."""
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    names.append("torchvision.transforms.v2.functional")
    made = {name: ModuleType(name) for name in names}
    for name, value in _FUNCTIONS.items():
        setattr(made[names[-1]], name, value)
    for outer, inner in itertools.pairwise(names):
        setattr(made[outer], inner.rpartition(".")[2], made[inner])
    sys.modules.update(made)
    try:
        yield made[names[-1]]
    finally:
        for name in names:
            del sys.modules[name]


def video_processor(kind: str, **settings: Any) -> Any:
    """A video processor of transformers, for example "Qwen2VLVideoProcessor"."""
    modules = {
        "Kimi_K25": "kimi_k25",
        "Qwen2VL": "qwen2_vl",
        "Qwen3VL": "qwen3_vl",
        "Glm4v": "glm4v",
        "LlavaOnevision": "llava_onevision",
        "InternVL": "internvl",
        "SmolVLM": "smolvlm",
    }
    name = modules[kind.removesuffix("VideoProcessor")]
    return torch_processor(f"{name}.video_processing_{name}", kind, **settings)


def torch_processor(module_name: str, kind: str, **settings: Any) -> Any:
    """A processor of a module in `transformers.models` that is written for torchvision."""
    from transformers import image_processing_backends, video_processing_utils

    with _importable() as functions:
        module = importlib.import_module(f"transformers.models.{module_name}")
        for user in (image_processing_backends, video_processing_utils):
            vars(user).setdefault("tvF", functions)
        vars(image_processing_backends).update(
            pil_torch_interpolation_mapping={2: "bilinear", 3: "bicubic", 1: "lanczos"},
            is_torchvision_greater_or_equal=lambda version: True,
        )
        return getattr(module, kind)(**settings)


_TOKENS = {
    "Qwen": {"video_token": "<|video_pad|>", "vision_start_token": "<|vision_start|>"}
    | {"vision_end_token": "<|vision_end|>"},
    "Glm4v": {"image_token": "<|image|>"},
    "Llava": {"video_token": "<video>"},
    "Kimi": {"video_token": "<|media_pad|>"},
    "InternVL": {"image_token": "<IMG_CONTEXT>", "start_image_token": "<img>"}
    | {"end_image_token": "</img>"},
    "SmolVLM": {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    | {"global_image_token": "<global-img>"},
}
_CLASSES = {"Qwen2_5_VL": "Qwen2_5_VLProcessor", "InternVL": "InternVLProcessor"}


def written(stem: str, processor: Any, features: Any, settings: dict[str, Any]) -> tuple[str, str]:
    """What the processor of transformers puts in a prompt for a clip, and the token in it that
    stands for an embedding.

    Args:
        stem: the architecture without "ForConditionalGeneration".
        processor: made by `video_processor`; `features` are its output.
        settings: further attributes of the processor of transformers.
    """
    import transformers
    from transformers.models.smolvlm import processing_smolvlm

    vars(processing_smolvlm)["num2words"] = {1: "one", 2: "two", 3: "three"}.__getitem__
    cls = getattr(transformers, _CLASSES.get(stem, f"{stem}Processor"))
    own = cls.__new__(cls)
    tokens = next(values for name, values in _TOKENS.items() if stem.startswith(name))
    for name, value in (tokens | settings | {"video_processor": processor}).items():
        setattr(own, name, value)
    token = tokens.get("video_token") or tokens["image_token"]
    return own.replace_video_token(features, 0), token
