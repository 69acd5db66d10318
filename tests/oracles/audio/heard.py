"""Checkpoints of models that hear, and what their audio towers must answer: the tower of
transformers, or an independent re-computation where it has none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

Grid: TypeAlias = tuple[int, int, int]
Clips: TypeAlias = list[tuple[Tensor, Grid]]
FAMILIES = ("conformers", "dasheng", "fun_audio", "qwen", "ultravox", "voxtral_realtime")
"""Modules of this folder that register makers."""


@dataclass(frozen=True)
class Heard:
    """Clips as the tower takes them, their embeddings, and the language model of transformers."""

    clips: Clips
    expected: list[Tensor]
    text: Any
    audio_token: int = 319


Maker: TypeAlias = Callable[[Path], Heard]
MAKERS: dict[str, Maker] = {}


def heard(*architectures: str) -> Callable[[Any], Any]:
    """Register the maker of a checkpoint under each of these names."""

    def register(make: Callable[[Path, str], Heard]) -> Any:
        for name in architectures:
            MAKERS[name] = partial(_made, make, name)
        return make

    return register


def _made(make: Callable[[Path, str], Heard], architecture: str, folder: Path) -> Heard:
    return make(folder, architecture)


def makers() -> dict[str, Maker]:
    """All makers, by architecture."""
    for name in FAMILIES:
        importlib.import_module(f"tests.oracles.audio.{name}")
    return MAKERS


def clips(bins: int, *frames: int) -> Clips:
    """Random spectrograms with so many frames."""
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(1, bins, n, generator=generator), (1, n, 0)) for n in frames]


def saved(folder: Path, architecture: str, config: Any) -> Any:
    """A model of transformers, saved to the folder; every weight is random."""
    import transformers

    config.architectures = [architecture]
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def randomise(model: Any) -> Any:
    """Random weights about 1 and 0, and statistics of batch norms."""
    for parameter in model.parameters():
        shift = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
        parameter.normal_(shift, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "global_mean")):
            buffer.normal_(0.0, 0.15)
        if name.endswith(("running_var", "global_invstd")):
            buffer.uniform_(0.8, 1.2)
    return model
