"""Tensor data of a GGUF file, stored as written; matrices are read by rows."""

from __future__ import annotations

import math
import mmap
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.checkpoint.gguf_header import TensorEntry
from baton.errors import ModelError
from baton_worker.checkpoint.formats.mmap import AROUND
from baton_worker.checkpoint.gguf.blocks import open_blocks
from baton_worker.checkpoint.row_reader import Rows
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight

_FLOATS = {
    gguf.GGMLQuantizationType.F32: np.float32,
    gguf.GGMLQuantizationType.F16: np.float16,
    gguf.GGMLQuantizationType.F64: np.float64,
}
"""Types that are not stored in blocks."""
Order: TypeAlias = "npt.NDArray[np.int64] | None"
"""Permutation of the stored rows; None keeps their order."""


class GgufData:
    """A memory-mapped file. Only copies of the data stay in memory."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = np.frombuffer(self._map, np.uint8)

    def blocks(self, tensor: TensorEntry, order: Order, factor: float = 1.0) -> UnreadWeight:
        """A matrix of a type in `BLOCK_TYPES` times a factor, with its rows in this order."""
        read = partial(self._open, tensor, order, factor)
        return UnreadWeight(read(slice(0, 1)).kind, torch.Size(tensor.shape), read)

    def rows(self, tensor: TensorEntry, order: Order) -> Rows:
        """A matrix of any type as float32, with its rows in this order."""
        self._stored(tensor)
        return Rows(torch.Size(tensor.shape), partial(self._widen, tensor, order))

    def floats(self, tensor: TensorEntry) -> npt.NDArray[np.float32]:
        """A whole tensor of any type and shape; may be a view of the map."""
        return _as_floats(tensor, self._stored(tensor))

    def part(self, tensor: TensorEntry, first: int, count: int) -> TensorEntry:
        """Some rows of a tensor, or some experts of a stacked one."""
        size = math.prod(_byte_shape(tensor)[1:])
        if len(tensor.shape) == 1:
            size = _byte_shape(tensor)[0] // tensor.shape[0]
        offset = tensor.offset + first * size
        return tensor._replace(shape=(count, *tensor.shape[1:]), offset=offset)

    def release(self, first: int = 0, last: int | None = None) -> None:
        """Release resident pages between two bytes of the file, or of all of it."""
        last = len(self._data) if last is None else min(len(self._data), last + AROUND)
        first = max(0, first - AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _open(
        self, tensor: TensorEntry, order: Order, factor: float, rows: slice
    ) -> BlockQuantized:
        opened = open_blocks(tensor.kind, self._copy(tensor, order, rows).view(np.uint8))
        return opened if factor == 1.0 else replace(opened, scales=opened.scales * factor)

    def _widen(self, tensor: TensorEntry, order: Order, rows: slice) -> Tensor:
        return torch.from_numpy(_as_floats(tensor, self._copy(tensor, order, rows)))

    def _copy(self, tensor: TensorEntry, order: Order, rows: slice) -> npt.NDArray[np.generic]:
        """Copy some rows of a matrix as stored."""
        stored = self._stored(tensor)
        numbers = np.arange(len(stored))[rows] if order is None else order[rows]
        copied = stored[rows].copy() if order is None else stored[numbers]
        first, last = int(numbers.min()), int(numbers.max()) + 1
        size = stored.strides[0]
        self.release(tensor.offset + first * size, tensor.offset + last * size)
        return copied

    def _stored(self, tensor: TensorEntry) -> npt.NDArray[np.generic]:
        """The bytes of a tensor as expected by `gguf.quants`: floats, or uint8 blocks by row."""
        kind = _kind(tensor)
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, kind)
        end = tensor.offset + math.prod(shape)
        if end > len(self._data):
            raise ModelError(f"The GGUF file ends before tensor {tensor.name}: fetch it again.")
        stored = self._data[tensor.offset : end].reshape(shape)
        return stored.view(_FLOATS[kind]) if kind in _FLOATS else stored


def unpermuted(count: int, num_heads: int) -> npt.NDArray[np.int64]:
    """Interleaved to half-split rotary rows: the inverse of llama.cpp's `permute`."""
    return np.arange(count).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(count)


def untiled(count: int, tiles: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Rows of value heads from the order (value head of a key head, key head) to the order (key
    head, value head)."""
    return np.arange(count).reshape(*tiles, -1).swapaxes(0, 1).reshape(count)


def _byte_shape(tensor: TensorEntry) -> tuple[int, ...]:
    kind = _kind(tensor)
    shape = tuple(gguf.quant_shape_to_byte_shape(tensor.shape, kind))
    itemsize = np.dtype(_FLOATS[kind]).itemsize if kind in _FLOATS else 1
    return shape if itemsize == 1 else (*tensor.shape[:-1], tensor.shape[-1] * itemsize)


def _as_floats(tensor: TensorEntry, stored: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """The values of some rows, or of all, as float32."""
    try:
        values = gguf.quants.dequantize(stored, _kind(tensor))
    except (NotImplementedError, ValueError) as error:
        raise _unreadable(tensor) from error
    return np.asarray(values, np.float32)


def _kind(tensor: TensorEntry) -> gguf.GGMLQuantizationType:
    try:
        return gguf.GGMLQuantizationType(tensor.kind)
    except ValueError as error:
        raise _unreadable(tensor) from error


def _unreadable(tensor: TensorEntry) -> ModelError:
    names = {member.value: member.name for member in gguf.GGMLQuantizationType}
    return ModelError(
        f"Tensor {tensor.name} has GGUF type {names.get(tensor.kind, f'number {tensor.kind}')}, "
        "which cannot be read. Requantise the file, for example to Q8_0 or Q4_K."
    )
