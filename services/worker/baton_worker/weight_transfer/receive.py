"""Receive weights: from files, from shared memory, or from a trainer's broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from baton.errors import ModelError
from baton.protocol import (
    BroadcastTransfer,
    FileTransfer,
    SharedMemoryTransfer,
    TensorInfo,
    WeightSource,
    WeightTransfer,
)
from baton_worker.weight_transfer.broadcast import Membership
from baton_worker.weight_transfer.contents import source_of
from baton_worker.weight_transfer.spool import WeightSpool

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}

_SEGMENTS = Path("/dev/shm")


def receive(transfer: WeightTransfer, spool: WeightSpool, member: Membership) -> WeightSource:
    """Returns files with the weights of a transfer. `member` is this worker's place in a group with
    a trainer.

    Raises:
        ModelError: there are none, or their contents are not the expected ones.
    """
    if isinstance(transfer, FileTransfer):
        return source_of(Path(transfer.path).expanduser().absolute(), transfer.sha256)
    if isinstance(transfer, BroadcastTransfer):
        return spool.store(_broadcast(transfer, member))
    return spool.store(dict(_from_shared_memory(transfer)))


def _broadcast(transfer: BroadcastTransfer, member: Membership) -> dict[str, Tensor]:
    """The tensors, as a trainer sends them now."""
    for tensor in transfer.tensors:
        _size(tensor)  # Refused before any is waited for.
    tensors, total = dict[str, Tensor](), sha256()
    for tensor in transfer.tensors:
        got = member.receive(tensor.shape, _DTYPES[tensor.dtype])
        total.update(got.flatten().view(torch.uint8).numpy().data)
        tensors[tensor.name] = got
    if transfer.sha256 and total.hexdigest() != transfer.sha256.lower():
        raise ModelError(
            f"What was broadcast has SHA-256 {total.hexdigest()}, not {transfer.sha256}."
        )
    return tensors


def _from_shared_memory(transfer: SharedMemoryTransfer) -> Iterator[tuple[str, Tensor]]:
    """Copies of the tensors."""
    data = _read(transfer.name, sum(map(_size, transfer.tensors)))
    digest = sha256(data).hexdigest()
    if transfer.sha256 and digest != transfer.sha256.lower():
        raise ModelError(
            f"Shared memory {transfer.name} has SHA-256 {digest}, not {transfer.sha256}."
        )
    start = 0
    for tensor in transfer.tensors:
        size = _size(tensor)
        flat = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=start).clone()
        yield tensor.name, flat.view(_DTYPES[tensor.dtype]).view(tensor.shape)
        start += size


def _size(tensor: TensorInfo) -> int:
    """Bytes of a tensor. Raises `ModelError`."""
    if tensor.dtype not in _DTYPES:
        raise ModelError(f"{tensor.name} is {tensor.dtype}; weights are {', '.join(_DTYPES)}.")
    if not tensor.shape or min(tensor.shape) < 1:
        raise ModelError(f"{tensor.name} has the shape {list(tensor.shape)}: it holds no numbers.")
    return math.prod(tensor.shape) * _DTYPES[tensor.dtype].itemsize


def _read(name: str, size: int) -> bytearray:
    """The first bytes of a segment. Raises `ModelError`.

    Linux has segments as files; the classes of Python would remove the sender's at exit.
    """
    path = _SEGMENTS / name.removeprefix("/")
    try:
        if path.parent != _SEGMENTS:
            raise FileNotFoundError("a name has no slashes")
        with path.open("rb") as file:
            data = bytearray(file.read(size))
    except (OSError, ValueError) as error:
        raise ModelError(f"There is no shared memory {name} on this host: {error}.") from error
    if len(data) < size:
        raise ModelError(
            f"Shared memory {name} has {len(data)} bytes, and the tensors take {size}."
        )
    return data
