"""Transfer buffers that a NIXL agent has registered, on the host or on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
import torch

from baton_worker.kv_transfer.transport import BlockBuffer, Bytes, Size

Region: TypeAlias = tuple[int, int, int]
"""Address, bytes, and number of the device."""


class Terms(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Metadata with which the target reads from a source."""

    agent: str
    metadata: bytes
    address: int
    """Address of the transfer buffer in the source's memory."""
    device: int = 0
    """Number of the GPU in the source's process."""


class Buffer(ABC):
    """A transfer buffer of one connection.

    Args:
        agent: that registers it.
        address: of its first byte.
        size: of the buffer.
        device: number of its GPU.
    """

    kind: ClassVar[str]
    """NIXL's name of the memory."""

    def __init__(self, agent: Any, address: int, size: Size, device: int = 0) -> None:
        self._agent, self._address, self._device = agent, address, device
        self._place_bytes = size.place_bytes
        self._registered = agent.register_memory([(address, size.total, device, "")], self.kind)

    @abstractmethod
    def view(self, place: int, size: int) -> BlockBuffer:
        """The first bytes of a slot."""

    def region(self, place: int, size: int) -> Region:
        """The same, as NIXL names it."""
        return self._address + place * self._place_bytes, size, self._device

    def terms(self) -> Terms:
        """The metadata for a target."""
        metadata = self._agent.get_agent_metadata()
        return Terms(self._agent.name, metadata, self._address, self._device)

    def close(self) -> None:
        """Deregister it: it can no longer be read remotely."""
        self._agent.deregister_memory(self._registered)


class HostBuffer(Buffer):
    """On the host."""

    kind = "DRAM"

    def __init__(self, agent: Any, size: Size) -> None:
        self._memory = np.empty(size, np.uint8)
        super().__init__(agent, self._memory.ctypes.data, size)

    def view(self, place: int, size: int) -> BlockBuffer:
        """See `Buffer`."""
        buffer: Bytes = self._memory[place, :size]
        return buffer


class GpuBuffer(Buffer):
    """On a GPU."""

    kind = "VRAM"

    def __init__(self, agent: Any, size: Size, device: torch.device) -> None:
        self._memory = torch.empty(tuple(size), dtype=torch.uint8, device=device)
        super().__init__(agent, self._memory.data_ptr(), size, device.index or 0)

    def view(self, place: int, size: int) -> BlockBuffer:
        """See `Buffer`."""
        return self._memory[place, :size]
