"""Free memory of a device, and memory of its tensors."""

from __future__ import annotations

from typing import Protocol

import torch


class DeviceMemory(Protocol):
    """Counters of one device, in bytes."""

    def free(self) -> int:
        """Free memory. Memory that freed tensors have left behind is given back first."""
        ...

    def held(self) -> int:
        """Bytes of the tensors of this process."""
        ...

    def peak(self) -> int:
        """The most that tensors of this process have held since `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Begin to look for the peak."""
        ...


class CudaMemory:
    """See `DeviceMemory`. Contexts, kernels and buffers of libraries are in `free` only, which is
    the driver's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        """See `DeviceMemory`."""
        torch.cuda.synchronize(self._device)
        # Memory of freed tensors is still reserved by torch, and counts as used for the driver.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def held(self) -> int:
        """See `DeviceMemory`."""
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        """See `DeviceMemory`."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak(self) -> None:
        """See `DeviceMemory`."""
        torch.cuda.reset_peak_memory_stats(self._device)


def device_memory(device: torch.device) -> DeviceMemory | None:
    """The memory of a GPU; None for a CPU, whose memory other programs use too."""
    return CudaMemory(device) if device.type == "cuda" else None
