"""Weights that change while a model serves: where new ones come from, and their version."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

DEFAULT_VERSION = "default"
"""Label of the weights that a model starts with."""
RECEIVED_WEIGHTS = "weights"
"""Folder in the run directory of weights that workers have received."""


class WeightSource(msgspec.Struct, frozen=True, array_like=True):
    """Files with weights, as each worker sees them."""

    path: str
    """A checkpoint, or a safetensors file with some of its tensors."""
    digest: bytes
    """SHA-256 of the contents."""
    whole: bool = True
    """It has every tensor of the model."""


class WeightVersion(msgspec.Struct, frozen=True, array_like=True):
    """Weights that all workers of a model agree on."""

    number: int = 0
    """Updates of the model so far: the higher one of two is the newer one."""
    label: str = DEFAULT_VERSION
    """Name that the operator has given it."""
    digest: bytes = b""
    """Identity, 16 bytes; empty for the weights that workers start with."""
    sources: tuple[WeightSource, ...] = ()
    """Where its tensors are: a later source replaces tensors of those before it."""


class _Transfer(msgspec.Struct, frozen=True, array_like=True, tag_field="backend"):
    pass


class FileTransfer(_Transfer, frozen=True, tag="files"):
    """Weights in files."""

    path: str
    """A checkpoint folder, a GGUF file, or a safetensors file."""
    sha256: dict[str, str] = {}
    """File -> what its contents must have, in hexadecimal digits."""


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of a packed buffer."""

    name: str
    """As in a checkpoint."""
    dtype: str
    """Like "bfloat16"."""
    shape: tuple[int, ...]


class SharedMemoryTransfer(_Transfer, frozen=True, tag="shared_memory"):
    """Tensors one after the other in POSIX shared memory, which is read before the answer."""

    name: str
    """Of the segment, as `shm_open` takes it."""
    tensors: tuple[TensorInfo, ...]
    sha256: str = ""
    """What the bytes of all tensors must have, in hexadecimal digits."""


class BroadcastTransfer(_Transfer, frozen=True, tag="gloo"):
    """Tensors that a trainer broadcasts, in this order, in the group of `InitWeightTransfer`."""

    tensors: tuple[TensorInfo, ...]
    sha256: str = ""
    """What the bytes of all tensors must have, in hexadecimal digits."""


WeightTransfer: TypeAlias = FileTransfer | SharedMemoryTransfer | BroadcastTransfer

UpdateMode: TypeAlias = Literal["keep", "wait", "abort"]
"""What becomes of running sequences: they continue on the new weights from their logs, finish on
the old ones, or fail."""
