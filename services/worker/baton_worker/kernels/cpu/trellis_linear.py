"""The product of `trellis.cpp`, callable on tensors: weights stay coded in memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.cpu.trellis_weight import BLOCK, CODEBOOKS, TILE, TrellisWeight
from baton_worker.kernels.linear import LinearSpec, LinearWeight, WithoutFactors

_DTYPES = (torch.float32, torch.bfloat16)
_LANES = 8


class _Trellis(ctypes.Structure):
    """`baton::Trellis` of trellis.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tiles", "left", "right", "bias")),
        *((name, ctypes.c_int64) for name in ("depth", "columns", "stride")),
        *((name, ctypes.c_int32) for name in ("bits", "codebook")),
        *((name, ctypes.c_int32) for name in ("input_is_float", "output_is_float")),
    )


def tiles(weight: TrellisWeight) -> Tensor:
    """int32 [N / 16, K / 16, bits, 8]: a lane has the ring of an eighth of a tile, its last bits
    first."""
    first, count = weight.first, weight.shape[0]
    assert first is not None, "refuses() was not asked"
    words: Tensor = weight.trellis.view(torch.int32)[:, first // TILE : (first + count) // TILE]
    return torch.unflatten(words, -1, (_LANES, -1)).flip(-1).permute(1, 0, 3, 2).contiguous()


class _Part:
    """One weight of a layer."""

    def __init__(self, weight: TrellisWeight, bias: Tensor | None, spec: LinearSpec) -> None:
        self.columns, depth = weight.shape
        first, scale = weight.first or 0, 1 / math.sqrt(BLOCK)
        self.tiles = tiles(weight)
        self.left = weight.suh.float() * scale
        self.right = weight.svh[first : first + self.columns].float() * scale
        self.bias = None if bias is None else bias.float().contiguous()
        self.about = _Trellis(
            tiles=self.tiles.data_ptr(),
            left=self.left.data_ptr(),
            right=self.right.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            depth=depth,
            columns=self.columns,
            bits=self.tiles.shape[2],
            codebook=list(CODEBOOKS).index(weight.codebook),
            input_is_float=spec.like.dtype is torch.float32,
            output_is_float=torch.float32 in (spec.like.dtype, spec.out_dtype),
        )

    @property
    def nbytes(self) -> int:
        return self.tiles.nbytes + self.left.nbytes + self.right.nbytes


class TrellisLinear(WithoutFactors):
    """Products with trellis-coded weights, the parts of a fused weight side by side. A row's bits
    do not depend on the other rows.

    Args:
        spec: its weights are `TrellisWeight`; the gate is left to the caller.
    """

    applies_gate = False

    def __init__(self, spec: LinearSpec) -> None:
        weights = [part for part in spec.weights if isinstance(part, TrellisWeight)]
        rows = [weight.shape[0] for weight in weights]
        biases = [None] * len(rows) if spec.bias is None else list(torch.split(spec.bias, rows))
        self._parts = [_Part(w, b, spec) for w, b in zip(weights, biases, strict=True)]
        self._columns, self._depth = sum(rows), weights[0].shape[1]
        self._dtype, self._bias = spec.like.dtype, spec.bias
        self._out_dtype = torch.float32 if torch.float32 in (spec.out_dtype,) else self._dtype
        for part in self._parts:
            part.about.stride = self._columns
        self.nbytes = sum(part.nbytes for part in self._parts)
        kernels = library("trellis")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_trellis, 6, tokens=2)

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if not isinstance(weight, TrellisWeight):
            return "it decodes trellises"
        if like is None or like.device.type != "cpu" or like.dtype not in _DTYPES:
            return "it multiplies float32 and bfloat16 on a CPU"
        if weight.first is None:
            return "its rows are not whole Hadamard blocks"
        return "the CPU kernels could not be built" if library("trellis") is None else None

    @classmethod
    def build(cls, spec: LinearSpec) -> TrellisLinear:
        """See `LinearBackend`."""
        return cls(spec)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        flat = x.reshape(-1, self._depth)
        out = x.new_empty((len(flat), self._columns), dtype=self._out_dtype)
        if residual is not None:
            residual = residual.reshape(-1, self._columns).contiguous()
        self._write([part.about for part in self._parts], flat, residual, out)
        return out.view(*x.shape[:-1], self._columns)

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        plain = [_Trellis.from_buffer_copy(part.about) for part in self._parts]
        for about in plain:
            about.bias, about.output_is_float = None, 1
        out = torch.empty(len(x), self._columns, dtype=torch.float32)
        self._write(plain, x, None, out)
        return out

    def _write(
        self, parts: Sequence[_Trellis], x: Tensor, residual: Tensor | None, out: Tensor
    ) -> None:
        assert x.dtype is self._dtype, "x does not fit the weight"
        x, first = x if x.stride(1) == 1 else x.contiguous(), 0
        for about in parts:
            columns = slice(first, first + about.columns)
            more = None if residual is None else residual[:, columns]
            address = ctypes.addressof(about)
            self._run(address, x, len(x), x.stride(0), more, out[:, columns])
            first = columns.stop
