"""Factors of outputs by adapter, as `product.h` reads them."""

from __future__ import annotations

import numpy as np
from torch import Tensor


class OutputFactors:
    """A table of pointers, one for each adapter, to a factor for every packed column."""

    def __init__(self) -> None:
        self._table = np.zeros(0, np.int64)
        self._tensors = dict[int, Tensor]()

    def put(self, slot: int, factors: Tensor | None) -> None:
        """Set those of an adapter, float32 [packed columns]; None: it has none."""
        self._tensors.pop(slot, None)
        if factors is not None:
            assert factors.is_contiguous()
            self._tensors[slot] = factors
        if slot >= len(self._table):
            self._table = np.pad(self._table, (0, slot + 1 - len(self._table)))
        self._table[slot] = 0 if factors is None else factors.data_ptr()

    @property
    def address(self) -> int | None:
        """Of the table, until the next `put`; None if no adapter has factors."""
        return int(self._table.ctypes.data) if self._tensors else None
