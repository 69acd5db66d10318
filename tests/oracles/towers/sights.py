"""Checkpoints of vision-language models that transformers has no class for, in the layout of their
makers, and what their towers must answer.

Each function writes a tiny random checkpoint into a folder and returns a `Sight`: an independent
re-computation, written from the published description and code, with the parts of
`tests.oracles.towers.plain`; the language model is one of transformers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.oracles.checkpoints import renamed, source, write
from tests.oracles.towers.plain import Weights

Grid: TypeAlias = tuple[int, int, int]
Images: TypeAlias = list[tuple[Tensor, Grid]]
IMAGE_TOKEN = 319
FAMILIES = (
    *("abstractors", "aimv2", "clip", "deepencoder", "internvit", "molmo2", "native"),
    *("mobilenet", "nemotron_parse", "pangu", "phi4"),
    *("radio", "resampled", "siglip", "step", "tile_rows", "vila"),
)
"""Modules of this folder that register makers."""


@dataclass(frozen=True)
class Sight:
    """Images as the tower takes them, their embeddings, and the language model of transformers."""

    images: Images
    expected: list[Tensor]
    text: Any
    image_token: int = IMAGE_TOKEN


Maker: TypeAlias = Callable[[Path], Sight]
MAKERS: dict[str, Maker] = {}


def sight(*architectures: str) -> Callable[[Any], Any]:
    """Register the maker of a checkpoint under each of these names."""

    def register(make: Callable[[Path, str], Sight]) -> Any:
        for name in architectures:
            MAKERS[name] = lambda folder, name=name: make(folder, name)
        return make

    return register


def makers() -> dict[str, Maker]:
    """All makers, by architecture."""
    for name in FAMILIES:
        importlib.import_module(f"tests.oracles.towers.{name}")
    return MAKERS


def text_model(architecture: str, **changes: Any) -> tuple[Any, dict[str, Any], Weights]:
    """A tiny language model of transformers, its config, and its tensors."""
    model, config, tensors = source(architecture, tie_word_embeddings=False, **changes)
    weights = Weights()
    weights.update(tensors)
    return model, config, weights


def save(
    folder: Path,
    architecture: str,
    config: dict[str, Any],
    tower: Weights,
    text: Weights,
    *names: tuple[str, str],
) -> None:
    """Write a checkpoint; `names` are replacements in the names of the language model's tensors."""
    write(folder, architecture, config, {**tower, **renamed(text, *names)})


def pixels(seed: int, *shape: int) -> Tensor:
    """Random pixels."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
