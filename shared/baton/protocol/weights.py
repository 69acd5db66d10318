"""Weight updates: sources of new weights, and their version."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

DEFAULT_VERSION = "default"
"""Label of the initial weights."""
RECEIVED_WEIGHTS = "weights"
"""Folder in the run directory of weights that workers have received."""


class WeightSource(msgspec.Struct, frozen=True, array_like=True):
    """Files with weights, by their paths on each worker."""

    path: str
    """A checkpoint, or a safetensors file with some of its tensors."""
    digest: bytes
    """SHA-256 of the contents."""
    whole: bool = True
    """Whether the update has every tensor of the model."""


class WeightVersion(msgspec.Struct, frozen=True, array_like=True):
    """Weights that all workers of a model agree on."""

    number: int = 0
    """Number of updates of the model so far: a higher number is newer."""
    label: str = DEFAULT_VERSION
    """Name that the operator has given it."""
    digest: bytes = b""
    """Identity, 16 bytes; empty for the initial weights."""
    sources: tuple[WeightSource, ...] = ()
    """Sources of its tensors: a later source replaces tensors of earlier ones."""


class _Transfer(msgspec.Struct, frozen=True, array_like=True, tag_field="backend"):
    pass


class FileTransfer(_Transfer, frozen=True, tag="files"):
    """Weights in files."""

    path: str
    """A checkpoint folder, a GGUF file, or a safetensors file."""
    sha256: dict[str, str] = {}
    """File -> SHA-256 of its contents, in hexadecimal digits."""


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a packed buffer."""

    name: str
    """Name in the checkpoint."""
    dtype: str
    """Like "bfloat16"."""
    shape: tuple[int, ...]


class SharedMemoryTransfer(_Transfer, frozen=True, tag="shared_memory"):
    """Consecutive tensors in POSIX shared memory, which is read before the reply."""

    name: str
    """Name of the segment for `shm_open`."""
    tensors: tuple[TensorInfo, ...]
    sha256: str = ""
    """SHA-256 of the bytes of all tensors, in hexadecimal digits."""


class BroadcastTransfer(_Transfer, frozen=True, tag="gloo"):
    """Tensors that a trainer broadcasts, in this order, in the group of `InitWeightTransfer`."""

    tensors: tuple[TensorInfo, ...]
    sha256: str = ""
    """SHA-256 of the bytes of all tensors, in hexadecimal digits."""


WeightTransfer: TypeAlias = FileTransfer | SharedMemoryTransfer | BroadcastTransfer

UpdateMode: TypeAlias = Literal["keep", "wait", "abort"]
"""Running sequences: they continue on the new weights from their logs, finish on the old ones, or
fail."""
