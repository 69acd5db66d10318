"""Persistent buffers for the indices of a step, as CUDA graphs require.

Successive decode steps write to the same addresses: nothing is allocated, and a captured graph
reads the new indices there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(slots=True)
class _Buffer:
    """A host buffer, and a device buffer of the same size unless the device is a CPU."""

    memory: npt.NDArray[Any]
    there: Tensor | None
    used: npt.NDArray[Any]
    """The front of `memory`, in the shape that was asked for last."""


class Buffers:
    """Named buffers. They grow to powers of two and never shrink.

    Args:
        device: device that reads the indices.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cpu, self._device = device.type == "cpu", device
        self._buffers: dict[str, _Buffer] = {}
        self.allocations = 0
        """How often memory was made: it rests once a step was as large as any that comes."""

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Contiguous, uninitialized host memory of this name."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.used.shape != shape:
            buffer = self._buffers[name] = self._cut(buffer, shape, dtype)
        return buffer.used

    def tensor(self, name: str) -> Tensor:
        """The `array` of this name on the device, valid until it is written again."""
        buffer = self._buffers[name]
        written = torch.from_numpy(buffer.used)
        if buffer.there is None:
            return written
        # The source is not pinned, so the copy has finished when this returns.
        return buffer.there[: written.numel()].view(written.shape).copy_(written)

    def _cut(self, buffer: _Buffer | None, shape: tuple[int, ...], dtype: npt.DTypeLike) -> _Buffer:
        size = math.prod(shape)
        if buffer is None or len(buffer.memory) < size:
            self.allocations += 1
            memory = np.zeros(1 << max(size - 1, 0).bit_length(), dtype)
            there = None if self._on_cpu else torch.from_numpy(memory).to(self._device)
        else:
            memory, there = buffer.memory, buffer.there
        return _Buffer(memory, there, memory[:size].reshape(shape))
