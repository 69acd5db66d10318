"""Blocks in GPU memory that two processes of one host share (CUDA IPC).

The transfer buffer is memory of the source's GPU: blocks are gathered into it and scattered from it
on the device, over NVLink or PCIe where the target has another GPU, and no host touches them. A
handle of the buffer is part of the connection's terms; the driver opens it in processes of the same
host alone. Both processes must see the GPU, and share /dev/shm, where torch counts who uses the
memory: containers need `ipc: host`, or one pod.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec
import torch
from torch import Tensor

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer.transport import BlockBuffer, Size, TransportError, UnusableError


class Handle(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Torch's handle with which another process opens memory of a GPU."""

    gpu: str
    """UUID: numbers of GPUs differ between processes."""
    handle: bytes
    size: int
    offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    event_needed: bool


class SharedDeviceMemory(Protocol):
    """Memory of a device that other processes can open."""

    def allocate(self, size: int) -> Tensor:
        """uint8 [size], to be shared."""
        ...

    def export(self, memory: Tensor) -> bytes:
        """A handle of allocated memory."""
        ...

    def open(self, handle: bytes) -> Tensor:
        """Memory of another process, uint8. Raises `TransportError` if it cannot be reached."""
        ...


class CudaMemory:
    """See `SharedDeviceMemory`.

    Args:
        device: where memory is allocated.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, size: int) -> Tensor:
        """See `SharedDeviceMemory`."""
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def export(self, memory: Tensor) -> bytes:
        """See `SharedDeviceMemory`."""
        storage: Any = memory.untyped_storage()
        _, *parts = storage._share_cuda_()
        return msgspec.msgpack.encode(Handle(_uuid(self._device), *parts))

    def open(self, handle: bytes) -> Tensor:
        """See `SharedDeviceMemory`."""
        terms = msgspec.msgpack.decode(handle, type=Handle)
        gpus = [n for n in range(torch.cuda.device_count()) if _uuid(n) == terms.gpu]
        if not gpus:
            raise TransportError(
                f"GPU {terms.gpu} of the source is not visible to this worker: give both all GPUs "
                "(CUDA_VISIBLE_DEVICES), or leave cuda_ipc out of --kv-transports"
            )
        kind: Any = torch.UntypedStorage
        storage = kind._new_shared_cuda(
            *(gpus[0], terms.handle, terms.size, terms.offset),
            *(terms.counter, terms.counter_offset, terms.event, terms.event_needed),
        )
        memory = torch.empty(0, dtype=torch.uint8, device=torch.device("cuda", gpus[0]))
        return memory.set_(storage)


def _uuid(device: torch.device | int) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


class CudaIpc:
    """Needs a GPU. See `transport.Transport`."""

    reach: Literal["host", "network"] = "host"
    on_device = True

    def __init__(self, config: Config, memory: SharedDeviceMemory | None = None) -> None:
        """`memory`: None means that of the GPU of this process."""
        if memory is None:
            if config.device == "cpu" or not torch.cuda.is_available():
                raise UnusableError("this worker has no GPU")
            memory = CudaMemory(torch.device("cuda", torch.cuda.current_device()))
        self._memory = memory

    def send(self, size: Size) -> CudaIpcSender:
        """Memory for a new connection. Raises `UnusableError`."""
        try:
            return CudaIpcSender(self._memory, size)
        except RuntimeError as error:  # Of the driver: no memory, or no IPC in this container.
            raise UnusableError(f"memory of this GPU cannot be shared: {error}") from error

    def receive(self, terms: bytes, size: Size) -> CudaIpcReceiver:
        """The same memory, opened. Raises `TransportError`."""
        try:
            return CudaIpcReceiver(self._memory.open(terms), size)
        except (RuntimeError, ValueError, msgspec.DecodeError) as error:
            raise TransportError(f"its GPU memory cannot be opened: {error}") from error

    def close(self) -> None:
        """No shared resources."""


class CudaIpcSender:
    """The source's end."""

    def __init__(self, memory: SharedDeviceMemory, size: Size) -> None:
        self._memory: Tensor | None = memory.allocate(size.total)
        self._place_bytes, self.terms = size.place_bytes, memory.export(self._memory)

    def view(self, place: int, size: int) -> BlockBuffer:
        """See `transport.Sender`: on the device."""
        assert self._memory is not None, "it is closed"
        return self._memory[place * self._place_bytes :][:size]

    def data(self, place: int, size: int) -> bytes:
        """Empty: the target reads the shared memory."""
        return b""

    def poll(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """The memory is free once the target has closed its end too."""
        self._memory = None


class CudaIpcReceiver:
    """The target's end. Raises `ValueError` if the memory does not have the agreed size."""

    def __init__(self, memory: Tensor, size: Size) -> None:
        if memory.numel() != size.total:
            raise ValueError(f"it has {memory.numel()} bytes and not {size.total}")
        self._memory: Tensor | None = memory
        self._place_bytes = size.place_bytes

    def take(self, block: Block, place: int) -> BlockBuffer:
        """See `transport.Receiver`: on the device."""
        assert self._memory is not None, "it is closed"
        return self._memory[place * self._place_bytes :][: block.size]

    def close(self) -> None:
        """Release the memory."""
        self._memory = None
