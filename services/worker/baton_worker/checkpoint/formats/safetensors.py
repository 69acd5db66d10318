"""A Hugging Face folder: its config, and every tensor of its safetensors files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.checkpoint.json_file import read_json
from baton.checkpoint.part_folders import PARTS, in_parts
from baton.errors import ModelError
from baton.logs import logger
from baton_worker.checkpoint.formats.mmap import opened
from baton_worker.quantization.collect import Collected, CollectedWeights
from baton_worker.quantization.methods import formats
from baton_worker.spec import Decoder
from baton_worker.spec.hf_config import read_config, read_eos_token_ids
from baton_worker.spec.names import Names

log = logger(__name__)

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_POINTER = b"version https://git-lfs"
_MAPPED = 2 << 20
"""Bytes of a shard read before it is mapped again; at least a 256th of it, or one tensor."""
_ROWS = 1024
"""Rows that are compared at a time."""


class SafetensorsFolder:
    """A Hugging Face folder: `model.safetensors`, or the shards that its index lists. The tensors
    of a checkpoint `in_parts` are named after their folder, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = read_config(folder)
        self.eos_token_ids = read_eos_token_ids(folder, self.config)

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Collected]]:
        """Every tensor of every shard, memory-mapped until it is copied or packed."""
        if (how := formats(self.config)) is None:
            yield from self._stored(spec)
            return
        gathered = CollectedWeights(how)
        for name, tensor in self._stored(spec):
            yield from gathered(name, tensor)
        gathered.end()

    def check_files(self) -> None:
        """Raise `ModelError` if a file is missing: before memory is allocated for its weights."""
        for shard in self._shards():
            if not os.path.isfile(shard):  # Of a name that is too long, too.
                raise ModelError(f"There is no {shard}. Copy it from where the others came from.")

    def _stored(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        # Embedding tables are in the first shard, heads in the last. The larger layer that packs
        # goes first: packed last, its floats would add to the peak.
        for shard in self._shards() if spec.head.tied else reversed(self._shards()):
            prefix = "" if shard.parent == self._folder else f"{shard.parent.name}."
            with readable(shard):
                for name, tensor in _tensors(shard):
                    yield prefix + name, tensor

    def _shards(self) -> list[Path]:
        if in_parts(self._folder):
            return [shard for part in PARTS for shard in shards_of(self._folder / part)]
        return shards_of(self._folder)


@contextmanager
def readable(shard: Path) -> Iterator[None]:
    """Raise `ModelError`, which says what to do, where a file cannot be read."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{shard} cannot be read: {_reason(shard, error)}") from error


def has_weights(folder: Path) -> bool:
    """Whether a folder has weights in one of the forms of `shards_of`."""
    return any((folder / name).is_file() for name in (_INDEX, _SINGLE))


def shards_of(folder: Path) -> list[Path]:
    """Files with the weights of a folder. Raises `ModelError`."""
    if (folder / _INDEX).is_file():
        return indexed(folder / _INDEX)
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    raise ModelError(f"{folder} holds no {_SINGLE} and no {_INDEX}. {_instead(folder)}")


def _instead(folder: Path) -> str:
    """What to do with a folder that has other files."""
    if (folder / "adapter_model.safetensors").is_file():
        return "It holds an adapter: serve its base model with --lora-modules NAME=FOLDER."
    if any(folder.glob("*.safetensors")):
        return "Its other safetensors files need that index: copy it from where they came from."
    return "Baton reads safetensors and GGUF only; convert other weights first."


def _reason(shard: Path, error: Exception) -> str:
    """Why a file cannot be read, and what to do."""
    if os.path.exists(shard) and not os.access(shard, os.R_OK):
        return "it is not readable for this user. Change its permissions."
    if os.path.isfile(shard):
        with shard.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                return "it is a pointer of Git LFS. Fetch the weights with git lfs pull."
    return f"{error}. Copy it again from where it came from."


def indexed(index: Path) -> list[Path]:
    """Files that an index names. Raises `ModelError`."""
    return [index.parent / name for name in sorted(_names(index))]


def _names(index: Path) -> set[str]:
    """Files that an index names. Raises `ModelError`."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(n, str) for n in listed.values()):
        raise ModelError(f"{index} has no weight_map from tensors to files.")
    names = set(listed.values())
    if any(Path(name).name != name for name in names):
        raise ModelError(f"{index} points outside its folder.")
    return names


def _tensors(shard: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a file. It is mapped again after every `_MAPPED` bytes: pages that were read
    count as process memory until the map is closed."""
    first, last, most = 0, 1, max(_MAPPED, shard.stat().st_size // 256)
    while first < last:
        with opened(shard) as file:
            names = list(file.keys())
            last, read = len(names), 0
            while first < last and read < most:
                tensor = file.get_tensor(names[first])
                read, first = read + tensor.nbytes, first + 1
                yield names[first - 1], tensor
                del tensor


def with_saved_head(spec: Decoder, folder: Path) -> Decoder:
    """The spec with what a checkpoint holds of a tied head, as transformers reads it: a head that
    differs from the embedding is used, and one without an embedding is both.

    Raises:
        ModelError: a file of the folder cannot be read.
    """
    if not spec.head.tied or in_parts(folder) or not has_weights(folder):
        return spec
    places = _places(spec, folder)
    if "head" not in places:
        return spec
    if "embedding" not in places:
        return _for_both(spec)
    if _equal(*places.values()):
        return spec
    log.warning(
        "config.json ties the head to the embedding, but the checkpoint holds another head, which "
        "is used. Write tie_word_embeddings: false there."
    )
    return replace(spec, head=replace(spec.head, tied=False))


def _places(spec: Decoder, folder: Path) -> dict[str, tuple[Path, str]]:
    """The file and the name of the weights of head and embedding, by role."""
    names = Names(spec.tensors.names)
    roles = {f"{names(role)}.weight": role for role in ("head", "embedding")}
    body = names("embedding").partition(".")[0]
    renames = [(re.compile(pattern), to) for pattern, to in spec.tensors.renames]
    places = dict[str, tuple[Path, str]]()
    for shard in shards_of(folder):
        with readable(shard), safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                whole = name
                for pattern, to in renames:
                    whole = pattern.sub(to, whole)
                if role := roles.get(whole) or roles.get(f"{body}.{whole}"):
                    places[role] = (shard, name)
    return places


def _for_both(spec: Decoder) -> Decoder:
    names = Names(spec.tensors.names)
    rename = (rf"^{re.escape(names('head'))}\.weight$", f"{names('embedding')}.weight")
    tensors = replace(spec.tensors, renames=(*spec.tensors.renames, rename))
    return replace(spec, tensors=tensors)


def _equal(one: tuple[Path, str], other: tuple[Path, str]) -> bool:
    with (
        readable(one[0]),
        safe_open(one[0], framework="pt") as first,
        readable(other[0]),
        safe_open(other[0], framework="pt") as second,
    ):
        ours, theirs = first.get_slice(one[1]), second.get_slice(other[1])
        shape = ours.get_shape()
        return shape == theirs.get_shape() and all(
            torch.equal(ours[at : at + _ROWS].float(), theirs[at : at + _ROWS].float())
            for at in range(0, shape[0], _ROWS)
        )
