"""Checkpoint to model: stream every tensor straight into the parameter that wants it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.errors import ModelError
from baton_worker.models.build import build
from baton_worker.models.config import read_config, read_eos_token_ids
from baton_worker.models.decoder import Model
from baton_worker.models.names import is_recomputed
from baton_worker.models.resolve import resolve
from baton_worker.models.spec import Decoder

_LISTED = 8
"""Tensor names that an error spells out before it counts the rest."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what the rest of the worker needs to know about it."""

    model: Model
    spec: Decoder
    config: SimpleNamespace
    max_length: int
    """Tokens, prompt and completion together, that the checkpoint declares."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weight_bytes: int = 0
    """Bytes of all weights in the precision they are held in; a tied head counts once."""


class Checkpoint(Protocol):
    """A container of weights in any file format."""

    config: SimpleNamespace
    eos_token_ids: tuple[int, ...]

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        """Every tensor once, under its Hugging Face name."""
        ...


def load_model(path: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load a checkpoint folder (config.json and safetensors) or a GGUF file.

    Raises:
        ModelError: the path holds neither, the architecture is unknown, or the tensors are not
            exactly those that the architecture wants.
    """
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    spec = resolve(config)
    model = build(spec, device=device, dtype=dtype)
    # Counted now: a layer may replace its parameters when it is filled.
    weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
    fill(model, checkpoint.tensors(spec), tied=spec.head.tied)
    return LoadedModel(
        model=model.eval(),
        spec=spec,
        config=config,
        max_length=config.max_position_embeddings,
        vocab_size=spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=weight_bytes,
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """The reader of this path's format; no weight is read yet."""
    if path.is_dir():
        return SafetensorsFolder(path)
    if path.is_file() and path.suffix == ".gguf":
        from baton_worker.models.gguf import GgufFile

        return GgufFile(path)
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    raise ModelError(
        f"{path.name} is not a checkpoint that Baton reads. "
        "Give a folder with config.json and .safetensors files, or a .gguf file."
    )


class SafetensorsFolder:
    """A Hugging Face folder: `model.safetensors`, or the shards that its index lists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = read_config(folder)
        self.eos_token_ids = read_eos_token_ids(folder, self.config)

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of every shard, memory-mapped until it is copied."""
        for shard in self._shards():
            try:
                with safe_open(shard, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - the handle is not iterable
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{shard} cannot be read: {error}.") from error

    def _shards(self) -> list[Path]:
        index = self._folder / "model.safetensors.index.json"
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if any(Path(name).name != name for name in names):
                raise ModelError(f"{index} points outside its folder.")
            return [self._folder / name for name in sorted(names)]
        single = self._folder / "model.safetensors"
        if single.is_file():
            return [single]
        raise ModelError(
            f"{self._folder} holds no model.safetensors and no model.safetensors.index.json. "
            "Baton reads safetensors and GGUF only; convert other weights first."
        )


def fill(model: Model, tensors: Iterator[tuple[str, Tensor]], *, tied: bool) -> None:
    """Copy each tensor to its destination, then let every layer prepare its weights.

    Raises:
        ModelError: a tensor is missing, left over, or of the wrong shape.
    """
    layers = model.layers()
    wanted = dict(pair for layer in layers for pair in layer.destinations())
    missing, leftover = set(wanted), list[str]()
    for name, tensor in tensors:
        if name in wanted:
            _copy(name, tensor, wanted)
            missing.discard(name)
        elif not is_recomputed(name) and not (tied and name == "lm_head.weight"):
            leftover.append(name)
    if missing or leftover:
        raise ModelError(
            "The checkpoint does not fit its architecture: "
            f"{_listed('missing', missing)}; {_listed('not used', leftover)}."
        )
    for layer in layers:
        layer.finish()


def _copy(name: str, tensor: Tensor, wanted: Mapping[str, Tensor]) -> None:
    if tensor.shape != wanted[name].shape:
        raise ModelError(
            f"Tensor {name} is {list(tensor.shape)} in the checkpoint, "
            f"but the config wants {list(wanted[name].shape)}."
        )
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        raise ModelError(f"Tensor {name} is {tensor.dtype}; quantised safetensors cannot be read.")
    wanted[name].copy_(tensor)


def _listed(what: str, names: set[str] | list[str]) -> str:
    some = sorted(names)[:_LISTED]
    rest = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
    return f"{what}: {', '.join(some) or 'none'}{rest}"
