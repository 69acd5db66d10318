"""Persistent buffers for the indices of a step, as CUDA graphs require.

Successive decode steps write to the same addresses: nothing is allocated, and a captured graph
reads the new indices there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """The front of `memory`, in the shape that was requested last."""


class Buffers:
    """Named buffers. They grow to powers of two and never shrink.

    Args:
        device: device that reads the indices.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cpu, self._device = device.type == "cpu", device
        self._buffers: dict[str, _Buffer] = {}
        self._put: dict[str, npt.NDArray[Any]] = {}
        self._scratch: dict[str, _Buffer] = {}
        self.flushed: Callable[[Buffers], None] | None = None
        """Called with each `flush`."""
        self.allocations = 0
        """Number of allocations: constant once the largest step has run."""

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Contiguous, uninitialized host memory of this name."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.used.shape != shape:
            buffer = self._buffers[name] = self._cut(buffer, shape, dtype, there=not self._on_cpu)
        return buffer.used

    def scratch(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Like `array`, of what the device does not read."""
        buffer = self._scratch.get(name)
        if buffer is None or buffer.used.shape != shape:
            buffer = self._scratch[name] = self._cut(buffer, shape, dtype, there=False)
        return buffer.used

    def tensor(self, name: str) -> Tensor:
        """The `array` of this name on the device, valid until it is written again."""
        buffer = self._buffers[name]
        written = torch.from_numpy(buffer.used)
        if buffer.there is None:
            return written
        # The source is not pinned, so the copy has finished when this returns.
        return buffer.there[: written.numel()].view(written.shape).copy_(written)

    def put(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        """Values on the device, valid until the next ones of this name."""
        self._put[name] = values
        written = torch.from_numpy(values)
        return written if self._on_cpu else written.to(self._device)

    def flush(self) -> None:
        """Nothing of this step is written any more: what is not on the device yet is copied."""
        if self.flushed is not None:
            self.flushed(self)

    def sent(self, name: str) -> npt.NDArray[Any]:
        """The host's values of the step that was flushed last, until the next one is written."""
        values = self._put.get(name)
        return self._buffers[name].used if values is None else values

    def _cut(
        self,
        buffer: _Buffer | None,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        *,
        there: bool,
    ) -> _Buffer:
        """Memory of this shape: that of the buffer if it is large enough. `there`: the device has
        some too."""
        size = math.prod(shape)
        if buffer is None or len(buffer.memory) < size:
            self.allocations += 1
            memory = np.zeros(1 << max(size - 1, 0).bit_length(), dtype)
            copy = torch.from_numpy(memory).to(self._device) if there else None
        else:
            memory, copy = buffer.memory, buffer.there
        return _Buffer(memory, copy, memory[:size].reshape(shape))
