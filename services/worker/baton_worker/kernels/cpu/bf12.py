"""Lossless compression of bfloat16 weights to twelve bits each: the layout of `compact.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

_MOST_EXCEPTIONS = 1 / 64
"""Share of exceptions among all weights. With more of them, handling them costs as much as the
fewer bytes save."""


class _Original(ctypes.Structure):
    """`baton::Original` of compacting.h."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("gated", ctypes.c_bool),
    )


@dataclass(frozen=True, slots=True)
class Bf12Weight:
    """A packed weight.

    Attributes:
        panels: uint8 [panels, bytes of a panel].
        bases: int32 [panels, columns].
        starts: int32 [panels * segments + 1], where the exceptions of each segment start.
        exceptions: int32 [exceptions], a place within the segment and a value.
    """

    POINTERS: ClassVar = ("bases", "starts", "exceptions")
    """Fields of `baton::Weight` for compact weights only, and of this class."""

    panels: Tensor
    bases: Tensor
    starts: Tensor
    exceptions: Tensor

    @classmethod
    def of(
        cls,
        weight: Tensor,
        gated: bool,
        kernels: ctypes.CDLL,
        empty: Callable[[Sequence[int], torch.dtype], Tensor],
    ) -> Bf12Weight | None:
        """Pack bfloat16 [N, K] into tensors from `empty`; None if the weight does not suit the
        format."""
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        rows, depth = weight.shape
        original = _Original(weight.data_ptr(), rows, depth, weight.stride(0), gated)
        bases, counts = _count(original, kernels)
        starts = torch.zeros(counts.numel() + 1, dtype=torch.int32)
        torch.cumsum(counts.flatten(), 0, dtype=torch.int32, out=starts[1:])
        total = int(starts[-1])
        if total > weight.numel() * _MOST_EXCEPTIONS:
            return None
        size = kernels.baton_compact_bytes(ctypes.c_int64(depth))
        packed = cls(
            empty((len(bases), size), torch.uint8),
            bases,
            starts,
            torch.empty(total, dtype=torch.int32),
        )
        packed._write(original, kernels)
        return packed

    def _write(self, original: _Original, kernels: ctypes.CDLL) -> None:
        parts = (self.bases, self.starts, self.panels, self.exceptions)
        pointers = [ctypes.c_void_p(part.data_ptr()) for part in parts]
        kernels.baton_compact_write.restype = ctypes.c_bool
        written = kernels.baton_compact_write(ctypes.byref(original), *pointers)
        assert written, "the weight changed while it was packed"

    def pointers(self) -> dict[str, int]:
        """Fields of `baton::Weight` for compact weights only."""
        return {name: tensor.data_ptr() for name, tensor in self.tensors().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Tensors beside the panels, by name."""
        return {name: getattr(self, name) for name in self.POINTERS}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Bf12Weight | None:
        """Made of panels and `tensors`; None if they are those of another format."""
        if "bases" not in tensors:
            return None
        return cls(tensors["panels"], *(tensors[name] for name in cls.POINTERS))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in (self.panels, self.bases, self.starts, self.exceptions))


def _count(original: _Original, kernels: ctypes.CDLL) -> tuple[Tensor, Tensor]:
    """Bases int32 [panels, columns]; exceptions of every segment, int32 [panels, segments]."""
    columns = 2 * kernels.baton_linear_width()
    panels = -(-original.rows // columns)
    if original.gated:
        panels = -(-original.rows // 2 // (columns // 2))
    segments = kernels.baton_compact_segments(ctypes.c_int64(original.depth))
    bases = torch.empty(panels, columns, dtype=torch.int32)
    counts = torch.empty(panels, segments, dtype=torch.int32)
    pointers = [ctypes.c_void_p(part.data_ptr()) for part in (bases, counts)]
    kernels.baton_compact_count(ctypes.byref(original), *pointers)
    return bases, counts
