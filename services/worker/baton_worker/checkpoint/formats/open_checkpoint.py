"""The reader of a checkpoint, by the format of its path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from baton.errors import ModelError
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.formats.mistral import MistralFolder
from baton_worker.checkpoint.formats.patched_checkpoint import PatchedCheckpoint
from baton_worker.checkpoint.formats.rank_sharded import RankShardedFolder
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder


def open_checkpoint(path: Path, patches: Sequence[Path] = ()) -> Checkpoint:
    """The reader of this path's format; no weight is read yet.

    Tensors of `patches`, safetensors files, take the place of the checkpoint's.

    Raises:
        ModelError: no format fits, or the checkpoint cannot be patched.
    """
    checkpoint = _reader(path)
    return PatchedCheckpoint(checkpoint, patches) if patches else checkpoint


def _reader(path: Path) -> Checkpoint:
    if path.is_dir():
        folders = (RankShardedFolder, MistralFolder)
        return next((kind for kind in folders if kind.fits(path)), SafetensorsFolder)(path)
    if path.is_file() and path.suffix == ".gguf":
        from baton_worker.checkpoint.gguf.multimodal_file import open_gguf

        return open_gguf(path)
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    raise ModelError(
        f"{path.name} is not a checkpoint that Baton reads. "
        "Give a folder with config.json and .safetensors files, or a .gguf file."
    )
