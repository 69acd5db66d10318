"""Buffers of a step that are copied to the device in one transfer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.buffers import Buffers
from baton_worker.platform.device_link import DeviceLink

_ALIGNMENT = 256
"""Bytes: what kernels may read at once, and more."""
_SMALLEST = 1 << 16
_HALVES = 2
"""Steps in transfer at most: one runs, the next one is written."""


@dataclass(slots=True)
class _Slab:
    """Memory on the device, and as much pinned memory on the host for each half."""

    host: tuple[Tensor, ...]
    there: Tensor
    taken: int = 0
    """Bytes that have names."""


@dataclass(slots=True)
class _Place:
    """Place of a named buffer."""

    slab: _Slab
    offset: int
    size: int


class StagedBuffers(Buffers):
    """See `Buffers`. All arrays of a step are in one pinned region, which is copied to the device
    in one transfer. There are two regions: while one is copied, the next step is written to the
    other.

        begin -> array, array, put ... -> flush (one copy) -> kernels -> array ... of the next step

    A step that is larger than any before gets a further region, and a copy of its own for it; at
    its end the regions become one.

    Args:
        device: device that reads the indices.
        link: copies to it.
    """

    def __init__(self, device: torch.device, link: DeviceLink) -> None:
        super().__init__(device)
        self._link, self._half = link, 0
        self._slabs: list[_Slab] = []
        self._places: dict[str, _Place] = {}
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """See `Buffers`. It belongs to the step that the next `flush` ends."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        place = self._place(name, size)
        self._shapes[name] = shape, kind
        memory = place.slab.host[self._half][place.offset : place.offset + size]
        return memory.numpy().view(kind).reshape(shape)

    def tensor(self, name: str) -> Tensor:
        """See `Buffers`: it has the contents of the `array` after `flush`."""
        (shape, kind), place = self._shapes[name], self._places[name]
        size = math.prod(shape) * kind.itemsize
        memory = place.slab.there[place.offset : place.offset + size]
        return memory.view(_TORCH[kind.str[1:]]).view(shape)

    def put(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        """See `Buffers`: it has the values after `flush`."""
        self.array(name, values.shape, values.dtype)[...] = values
        return self.tensor(name)

    def flush(self) -> None:
        """See `Buffers`."""
        for slab in self._slabs:
            host = slab.host[self._half]
            self._link.upload(host[: slab.taken], slab.there[: slab.taken])
        super().flush()
        self._half = (self._half + 1) % _HALVES
        if len(self._slabs) > 1:
            self._join()

    def sent(self, name: str) -> npt.NDArray[Any]:
        """See `Buffers`; only while `flushed` is called."""
        return self.array(name, *self._shapes[name])

    def _place(self, name: str, size: int) -> _Place:
        place = self._places.get(name)
        if place is None or place.size < size:
            place = self._places[name] = self._take(1 << max(size - 1, 0).bit_length())
        return place

    def _take(self, size: int) -> _Place:
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        slab = self._slabs[-1] if self._slabs else None
        if slab is None or slab.taken + size > len(slab.there):
            slab = self._grow(max(size, _SMALLEST))
        place = _Place(slab, slab.taken, size)
        slab.taken += size
        return place

    def _grow(self, size: int) -> _Slab:
        self.allocations += 1
        host = tuple(self._link.pinned(size) for _ in range(_HALVES))
        there = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._slabs.append(_Slab(host, there))
        return self._slabs[-1]

    def _join(self) -> None:
        """One region for all named buffers. Tensors of the step that was just queued keep their
        memory."""
        sizes = {name: place.size for name, place in self._places.items()}
        self._slabs, self._places = [], {}
        self._grow(1 << (2 * sum(sizes.values()) - 1).bit_length())
        for name, size in sizes.items():
            self._places[name] = self._take(size)


_TORCH = {
    "i4": torch.int32,
    "i8": torch.int64,
    "f4": torch.float32,
    "f8": torch.float64,
    "i1": torch.int8,
    "b1": torch.bool,
}
"""By numpy's letters."""
