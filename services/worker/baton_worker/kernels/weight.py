"""Contract of quantised weights of every scheme, so that layers and loaders know no schemes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from baton_worker.kernels.quantized_weights import BlockQuantized


class QuantizedWeight(Protocol):
    """A weight [N, K] as a checkpoint stores it."""

    @property
    def shape(self) -> torch.Size:
        """[N, K]."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        ...

    @property
    def column_multiple(self) -> int:
        """The first column and the number of columns of a shard must be multiples of this."""
        ...

    def __getitem__(self, rows: slice | Tensor) -> QuantizedWeight:
        """Some rows, by slice or by indices int64 [n]."""
        ...

    def columns(self, first: int, count: int) -> QuantizedWeight:
        """Some columns; both numbers are multiples of `column_multiple`."""
        ...

    def padded(self, rows: int) -> QuantizedWeight:
        """The weight with this many rows of zeros appended."""
        ...

    def to(self, device: torch.device) -> Self:
        """Copy to another device."""
        ...

    def dequantise(self) -> Tensor:
        """float32 [N, K]: the plain twin of every kernel that takes the weight."""
        ...

    def blocks(self) -> BlockQuantized | None:
        """The same numbers in blocks for the CPU kernels; None if they have no such kind."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """The weights of all experts of a layer, as one tensor of a checkpoint holds them."""

    shape: torch.Size
    """[E, N, K]."""
    read: Callable[[int], QuantizedWeight]
    """The weight of an expert."""

    def __getitem__(self, expert: int) -> QuantizedWeight:
        """The weight of an expert."""
        return self.read(expert)

    def dequantise(self) -> Tensor:
        """float32 [E, N, K]."""
        return torch.stack([self[expert].dequantise() for expert in range(self.shape[0])])
