"""Serialises processed layers; the bytes refer to memory that outlives the worker.

A layer that cannot process its weights twice (`Layer.single_use`: it took packed weights, or has
rewritten floats) is described: the attributes that processing sets (`Layer.processed`), down to
their tensors, which are moved into kept memory. No class of weights or kernels is known here. The
worker that loads continues with the layers that it has read back, so an incomplete description
fails there and not in the next worker (`object_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from baton_worker.checkpoint.object_tree import Described, NotDescribed, object_of, tree_of
from baton_worker.device_keeper.bump_allocator import BumpAllocator
from baton_worker.device_keeper.kept_memory import KeptMemory
from baton_worker.layers.layer import Layer

BLOCK = 128 << 20
"""Bytes of a block, or as many as its only tensor has: what is packed is counted when it is
there."""
_TENSOR, _HOST, _ATTRIBUTE = "tensor", "host", "attribute"
_ERRORS = (NotDescribed, msgspec.DecodeError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors of an invalid description, and of the device."""


class NotKept(Exception):
    """Something cannot outlive this worker, as half a sentence."""


class KeptBlocks:
    """Blocks of kept memory: the parameters', then those that are filled one after the other."""

    def __init__(self, first: KeptMemory, lease: Callable[[int, int], KeptMemory | None]) -> None:
        """`lease`: the block of a number and size."""
        self.memories, self._lease = [first], lease
        self._room: BumpAllocator | None = None
        self._remaining = 0

    def open(self, sizes: Sequence[int]) -> bool:
        """Open the blocks of another worker; false where one is not what it was."""
        leased = [self._lease(number, size) for number, size in enumerate(sizes[1:], start=1)]
        memories = [self.memories[0], *(block for block in leased if block is not None)]
        if [len(block.memory) for block in memories] != list(sizes):
            return False
        if not all(block.whole for block in memories):
            return False
        self.memories = memories
        return True

    def seal(self) -> None:
        """Mark the contents as complete and constant."""
        for kept in self.memories:
            kept.seal()

    def at(self, block: int, start: int, size: int) -> Tensor:
        """uint8 [size]."""
        return self.memories[block].memory[start : start + size]

    def place(self, memory: Tensor) -> tuple[int, int]:
        """Block and first byte of memory, uint8 [n], which is copied unless it lies there.

        Raises:
            NotKept: there is no room.
        """
        if (location := self._find(memory)) is not None:
            return location
        room = self._next(len(memory)).empty(memory.shape, torch.uint8)
        room.copy_(memory)
        location = self._find(room)
        assert location is not None, "it is in the last block"
        return location

    def _find(self, memory: Tensor) -> tuple[int, int] | None:
        for block, kept in enumerate(self.memories):
            start = memory.data_ptr() - kept.memory.data_ptr()
            if start >= 0 and start + len(memory) <= len(kept.memory):
                return block, start
        return None

    def _next(self, size: int) -> BumpAllocator:
        """An allocator with room for so many bytes."""
        needed = BumpAllocator()
        needed.empty((size,), torch.uint8)
        if self._room is None or needed.size > self._remaining:
            self._remaining = max(BLOCK, needed.size)
            block = self._lease(len(self.memories), self._remaining)
            if block is None:
                raise NotKept("its keeper has no memory for them")
            self.memories.append(block)
            self._room = BumpAllocator(block.memory)
        self._remaining -= needed.size
        return self._room


def describe(layer: Layer, blocks: KeptBlocks) -> bytes:
    """Move the processed weights of a layer into blocks; returns their description.

    Raises:
        NotKept: there is no room, or it holds what cannot be described.
    """
    attributes = {name: getattr(layer, name) for name in layer.processed}
    try:
        return msgspec.msgpack.encode(tree_of(attributes, _Writer(layer, blocks)))
    except _ERRORS as error:
        raise NotKept(f"{type(layer).__name__} cannot be described ({error})") from error


def read(layer: Layer, data: bytes, blocks: KeptBlocks) -> dict[str, Any]:
    """The processed attributes of a layer: see `Layer.restore`.

    Raises:
        NotKept: it is not what this program makes.
    """
    try:
        tree = msgspec.msgpack.decode(data)
        attributes: dict[str, Any] = object_of(tree, _Reader(layer, blocks))
    except _ERRORS as error:
        raise NotKept(f"{type(layer).__name__} cannot be read ({error})") from error
    return attributes


class _Writer:
    """Names tensors by where they lie, and what else the layer has by its attribute."""

    def __init__(self, layer: Layer, blocks: KeptBlocks) -> None:
        self._blocks = blocks
        self._names = {id(value): name for name, value in _others(layer)}
        self._placed = dict[tuple[int, int], tuple[int, int]]()

    def __call__(self, value: Any) -> Described | None:
        if (name := self._names.get(id(value))) is not None:
            return [_ATTRIBUTE, name]
        if not isinstance(value, Tensor):
            return None
        is_parameter, value = isinstance(value, nn.Parameter), value.detach()
        dtype = str(value.dtype).removeprefix("torch.")
        form = [dtype, list(value.shape), list(value.stride()), is_parameter]
        if value.device.type != self._blocks.memories[0].memory.device.type:
            value = value.contiguous()
            form[2] = list(value.stride())
            return [_HOST, _spanned(value).numpy().tobytes(), *form]
        return [_TENSOR, self._place(_spanned(value)), *form]

    def _place(self, memory: Tensor) -> list[int]:
        """Block, first byte and size of memory, which is copied once, with all of its parts."""
        start, size = memory.data_ptr(), len(memory)
        for (first, most), (block, at) in self._placed.items():
            if first <= start and start + size <= first + most:
                return [block, at + start - first, size]
        self._placed[start, size] = block, at = self._blocks.place(memory) if size else (0, 0)
        return [block, at, size]


def _spanned(value: Tensor) -> Tensor:
    """The memory from a tensor's first number to its last one: uint8 [n]."""
    size = value.element_size()
    span = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
    memory = torch.empty(0, dtype=torch.uint8, device=value.device)
    where = (value.storage_offset() * size, (span * size if value.numel() else 0,), (1,))
    return memory.set_(value.untyped_storage(), *where)


class _Reader:
    """The tensor or attribute of such a name."""

    def __init__(self, layer: Layer, blocks: KeptBlocks) -> None:
        self._blocks, self._others = blocks, dict(_others(layer))

    def __call__(self, name: Described) -> Any:
        kind, where, *form = name
        if kind == _ATTRIBUTE:
            return self._others[where]
        dtype, shape, stride, is_parameter = form
        if kind == _TENSOR:
            memory = self._blocks.at(*where)
        else:
            memory = torch.tensor(list(where), dtype=torch.uint8)
        value = memory.view(getattr(torch, dtype)).as_strided(shape, stride)
        return nn.Parameter(value, requires_grad=False) if is_parameter else value


def _others(layer: Layer) -> list[tuple[str, Any]]:
    """Attributes that processing does not set, by name: what it has made may refer to them."""
    named = {**vars(layer), **layer._parameters, **layer._modules}
    plain = (str, int, float, bool, tuple, frozenset, torch.dtype, type(None))
    return [
        (name, value)
        for name, value in named.items()
        if name not in layer.processed and not isinstance(value, plain)
    ]
