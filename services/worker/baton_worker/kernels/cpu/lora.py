"""The low-rank products of `lora.cpp`, callable on tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.lora import LoraPair, TokenAdapters

_PAIR = np.dtype(
    [("a", np.int64), ("b", np.int64), ("rank", np.int64), ("scale", "<f4"), ("padding", "<i4")]
)
"""`baton::Pair` of lora.cpp."""
_DTYPES = (torch.float32, torch.bfloat16)


class _Lora(ctypes.Structure):
    """`baton::Lora` of lora.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("pairs", "adapters", "ends")),
        *((name, ctypes.c_int64) for name in ("parts", "depth", "columns")),
        *((name, ctypes.c_int32) for name in ("bytes", "out_bytes", "adds")),
    )


class CpuLora:
    """See `kernels.lora.LoraKernel`. A token's result has the same bits whatever the other tokens
    and their adapters are."""

    def __init__(
        self,
        in_features: int,
        parts: Sequence[int],
        adapters: TokenAdapters,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
    ) -> None:
        kernels = library("lora")
        assert kernels is not None, "refuses() was not asked"
        self._pairs = np.zeros((adapters.max_loras, len(parts)), _PAIR)
        self._ends = np.cumsum(np.array(parts, np.int64))
        self._slot_pairs: list[Sequence[LoraPair | None]] = [()] * adapters.max_loras
        self._depth, self._columns, self._dtype = in_features, sum(parts), dtype
        self._adapters, self._out_dtype = adapters, out_dtype
        self._adds, self._replaces = self._how(out_dtype, 1), self._how(torch.float32, 0)
        self._run = Kernel(kernels.baton_lora, 5, tokens=2)

    def _how(self, out_dtype: torch.dtype, adds: int) -> _Lora:
        return _Lora(
            self._pairs.ctypes.data,
            self._adapters.slots.data_ptr(),
            self._ends.ctypes.data,
            len(self._ends),
            self._depth,
            self._columns,
            self._dtype.itemsize,
            out_dtype.itemsize,
            adds,
        )

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why it cannot be used, as half a sentence; None if it can."""
        if device.type != "cpu":
            return "it is not on the CPU"
        if dtype not in _DTYPES:
            return f"the CPU kernels have no {dtype}"
        return "the CPU kernels could not be built" if library("lora") is None else None

    def put(self, slot: int, pairs: Sequence[LoraPair | None]) -> None:
        """See `LoraKernel`."""
        for line, pair in zip(self._pairs[slot], pairs, strict=True):
            line["rank"] = 0
            if pair is not None:
                assert pair.a.dtype is pair.b.dtype is self._dtype
                line["a"], line["b"] = pair.a.data_ptr(), pair.b.data_ptr()
                line["scale"], line["rank"] = pair.scale, len(pair.a)
        self._slot_pairs[slot] = pairs

    def add(self, x: Tensor, out: Tensor) -> Tensor:
        """See `LoraKernel`."""
        assert out.dtype is self._out_dtype and out.is_contiguous()
        self._call(self._adds, x, out)
        return out

    def delta(self, x: Tensor) -> Tensor:
        """See `LoraKernel`."""
        out = x.new_empty((len(x), self._columns), dtype=torch.float32)
        self._call(self._replaces, x, out)
        return out

    def _call(self, how: _Lora, x: Tensor, out: Tensor) -> None:
        assert x.dtype is self._dtype and x.ndim == 2 and x.shape[1] == self._depth
        assert len(x) <= len(self._adapters.slots), "a step has more tokens than were announced"
        x = x if x.stride(1) == 1 else x.contiguous()
        self._run(ctypes.addressof(how), x, len(x), x.stride(0), out)
