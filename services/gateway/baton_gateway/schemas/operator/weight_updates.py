"""Requests that change the weights of a model while it serves, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from baton.protocol import (
    BroadcastTransfer,
    FileTransfer,
    InitWeightTransfer,
    SharedMemoryTransfer,
    TensorInfo,
    UpdateMode,
    WeightTransfer,
)
from baton_gateway.schemas.base import Request

_Path = Annotated[str, Field(min_length=1, max_length=4096)]
_Digits = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
_Name = Annotated[str, Field(min_length=1, max_length=512)]
_MOST_TENSORS = 100_000
_MOST_RANKS = 4096


class InitWeightTransferRequest(Request):
    """POST /init_weight_transfer_engine (vLLM)."""

    init_info: dict[str, Any]
    """Fields of `GroupInit` for the backend `gloo`. Files and shared memory need none."""

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"init_info"})


class FileUpdate(Request):
    """`update_info` of the backend `files`."""

    path: _Path
    """A checkpoint folder or GGUF file with all weights, or a safetensors file with some, by its
    path on the workers."""
    sha256: dict[_Name, _Digits] = {}
    """File name -> expected SHA-256 of its contents."""

    def transfer(self) -> WeightTransfer:
        """As a message."""
        return FileTransfer(self.path, self.sha256)


class _TensorList(Request):
    """Tensors that are sent one after the other, without gaps."""

    names: Annotated[list[_Name], Field(min_length=1, max_length=_MOST_TENSORS)]
    """Names of the tensors in the checkpoint."""
    dtype_names: list[_Name]
    """Dtype of each tensor, such as bfloat16."""
    shapes: list[list[Annotated[int, Field(ge=1, le=2**40)]]]
    sha256: _Digits | None = None
    """Expected SHA-256 of all bytes of the tensors."""

    @model_validator(mode="after")
    def _as_many(self) -> Self:
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            raise ValueError("names, dtype_names and shapes have one entry for each tensor")
        if len(set(self.names)) < len(self.names):
            raise ValueError("a tensor comes twice")
        return self

    def tensors(self) -> tuple[TensorInfo, ...]:
        """As in a message."""
        columns = zip(self.names, self.dtype_names, self.shapes, strict=True)
        return tuple(TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in columns)


class SharedMemoryUpdate(_TensorList):
    """`update_info` of the backend `shared_memory`."""

    name: _Name
    """Name of the POSIX segment on the workers' host."""

    def transfer(self) -> WeightTransfer:
        """As a message."""
        return SharedMemoryTransfer(self.name, self.tensors(), (self.sha256 or "").lower())


class BroadcastUpdate(_TensorList):
    """`update_info` of the backend `gloo`: rank 0 broadcasts the tensors in this order."""

    def transfer(self) -> WeightTransfer:
        """As a message."""
        return BroadcastTransfer(self.tensors(), (self.sha256 or "").lower())


class GroupInit(Request):
    """`init_info` of the backend `gloo` (vLLM): a process group, the trainer its rank 0."""

    master_address: _Name
    """Address of the trainer's store."""
    master_port: Annotated[int, Field(ge=1, le=65535)]
    rank_offset: Annotated[int, Field(ge=1, le=_MOST_RANKS)] = 1
    """Rank of the first worker."""
    world_size: Annotated[int, Field(ge=2, le=2 * _MOST_RANKS)]
    """Number of ranks: the trainer, and one per worker of the model."""

    def action(self) -> InitWeightTransfer:
        """As a message."""
        place = self.rank_offset, self.world_size
        return InitWeightTransfer(self.master_address, self.master_port, *place)


class UpdateWeightsRequest(Request):
    """POST /update_weights (vLLM)."""

    update_info: dict[str, Any]
    """Fields of the backend: of `FileUpdate`, `SharedMemoryUpdate` or `BroadcastUpdate`."""

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"update_info"})


class FinishWeightUpdateRequest(Request):
    """POST /finish_weight_update (vLLM)."""

    weight_version: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Name of the new version; null for its number."""
    mode: UpdateMode = "keep"
    """Running requests: keep (they continue on the new weights), wait (they finish on the old ones
    first) or abort."""

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"weight_version", "mode"})
