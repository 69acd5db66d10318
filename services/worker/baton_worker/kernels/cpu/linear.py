"""The product of `linear.cpp`, callable on tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.bf12 import Bf12Weight
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.cpu.huge_pages import ARENA
from baton_worker.kernels.cpu.output_factors import OutputFactors
from baton_worker.kernels.cpu.weight_layout import FORMATS, arranged, library_of, pack
from baton_worker.kernels.linear import LinearSpec, LinearWeight
from baton_worker.kernels.movable import prefixed, without_prefix
from baton_worker.kernels.quantized_weights import BlockQuantized, Rounding, merge

GATES = {"silu": 1, "gelu_tanh": 2}
"""Activations of a fused gate and up product, as `linear.cpp` numbers them."""
_DTYPES = (torch.float32, torch.bfloat16)


class _Weight(ctypes.Structure):
    """`baton::Weight` of linear.cpp."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("input_is_float", ctypes.c_int32),
        ("output_is_float", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("bases", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("exceptions", ctypes.c_void_p),
        ("adapters", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
    )


class CpuLinear:
    """A packed weight and the C++ product.

    A row's result has the same bits whatever the other rows, their number and the number of
    threads: every sum runs over the inner dimension in one order. Bias, residual, gate and
    rounding come after the sum, on float32.

    Args:
        weight: [out, in] float32, bfloat16, blocks or what becomes blocks; with a gate
            [2 * out, in], gate rows first.
        bias: one value per row of `weight`.
        gate: return activation(gate) * up, with an activation of `GATES`.
        dtype: of x and residual, float32 or bfloat16; None means the weight's. Where it is not that
            of a weight of floats, x is widened on the way, exactly.
        out_dtype: of the result, float32 or `dtype`; None means `dtype`.
        adapters: the number of each row's adapter, int32: of a weight with a gate and a residual,
            or with factors.
        compact: store bfloat16 in three quarters of its bytes where that is possible; None means
            where it pays. Not a bit of any result depends on it.
    """

    def __init__(
        self,
        weight: Tensor | BlockQuantized | Rounding,
        bias: Tensor | None,
        *,
        gate: str | None = None,
        dtype: torch.dtype | None = None,
        out_dtype: torch.dtype | None = None,
        adapters: Tensor | None = None,
        compact: bool | None = None,
    ) -> None:
        kernels = library("linear")
        assert kernels is not None
        width = int(kernels.baton_linear_width())
        rows, self.depth = weight.shape
        self.columns = rows // 2 if gate else rows
        self.applies_gate = gate is not None
        self._width, self._is_float = width, isinstance(weight, Tensor)
        self._dtype = weight.dtype if dtype is None and isinstance(weight, Tensor) else dtype
        assert self._dtype in _DTYPES
        self.out_dtype = out_dtype or self._dtype
        kind = self._pack(weight, kernels, compact)
        self._bias = None
        if bias is not None:
            self._bias = arranged(bias.to(torch.float32), width, self.applies_gate)
        self._weight = _Weight(
            columns=self.columns,
            depth=self.depth,
            stride=self.columns,
            kind=kind,
            input_is_float=self._dtype is torch.float32,
            output_is_float=self.out_dtype is torch.float32,
            activation=GATES[gate] if gate else 0,
            adapters=None if adapters is None else adapters.data_ptr(),
        )
        self._adapters, self._factors = adapters, OutputFactors()
        self._point()
        products = library(library_of(kind))
        assert products is not None
        self._run = Kernel(products.baton_linear, 6, tokens=2)
        self._copy_rows = Kernel(kernels.baton_compact_rows, 4, tokens=2)

    def _pack(
        self, weight: Tensor | BlockQuantized | Rounding, kernels: Any, compact: bool | None
    ) -> int:
        """Pack the weight; returns the number of its format."""
        kernels.baton_compact_pays.restype = ctypes.c_bool
        compact = kernels.baton_compact_pays() if compact is None else compact
        self._compact: Bf12Weight | None = None
        if compact and isinstance(weight, Tensor) and weight.dtype is torch.bfloat16:
            self._compact = Bf12Weight.of(weight, self.applies_gate, kernels, ARENA.empty)
        if self._compact is not None:
            self._panels = self._compact.panels
            return FORMATS["compact"]
        self._panels = pack(weight, self._width, self.applies_gate, ARENA.empty)
        return FORMATS[weight.dtype if isinstance(weight, Tensor) else weight.kind]

    def _point(self) -> None:
        """Let the C++ product read the tensors of this kernel."""
        self._weight.panels = self._panels.data_ptr()
        self._weight.bias = None if self._bias is None else self._bias.data_ptr()
        extra = {} if self._compact is None else self._compact.pointers()
        for name in Bf12Weight.POINTERS:
            setattr(self._weight, name, extra.get(name))
        self._address = ctypes.addressof(self._weight)

    @property
    def entry(self) -> tuple[int, int]:
        """Addresses of the C++ product and of this weight, for kernels that make the product."""
        return self._run.address, self._address

    @property
    def layout(self) -> str:
        """See `MovableKernel`. Some of several bfloat16 weights may be compact."""
        kind = "floats" if self._is_float else self._weight.kind
        shape = f"{self.columns}x{self.depth} by {self._width}"
        about = (self._dtype, self.out_dtype, self.applies_gate, self._bias is not None)
        return f"{kind} {shape} {about}"

    def tensors(self) -> dict[str, Tensor]:
        """See `MovableKernel`."""
        compact = {} if self._compact is None else self._compact.tensors()
        bias = {} if self._bias is None else {"bias": self._bias}
        return {"panels": self._panels} | compact | bias

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> CpuLinear:
        """See `MovableKernel`."""
        linear = copy(self)
        linear._weight = _Weight.from_buffer_copy(self._weight)
        linear._panels, linear._bias = tensors["panels"], tensors.get("bias")
        linear._compact = Bf12Weight.of_tensors(tensors)
        if self._is_float:
            linear._weight.kind = FORMATS["compact" if linear._compact else self._dtype]
        linear._adapters, linear._factors, linear._weight.adapters = None, OutputFactors(), None
        linear._point()
        return linear

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if not isinstance(weight, Tensor | BlockQuantized | Rounding):
            return "the CPU kernels multiply with floats and blocks"
        if not isinstance(weight, Tensor) and weight.shape[1] % KINDS[weight.kind].multiple:
            return f"its rows are not whole groups of {KINDS[weight.kind].multiple}"
        for floats in (weight, like):
            if isinstance(floats, Tensor) and floats.device.type != "cpu":
                return "it is not on the CPU"
            if isinstance(floats, Tensor) and floats.dtype not in _DTYPES:
                return f"the CPU kernels have no {floats.dtype}"
        form = FORMATS[weight.dtype if isinstance(weight, Tensor) else weight.kind]
        if library("linear") is None or library(library_of(form)) is None:
            return "the CPU kernels could not be built"
        return None

    @classmethod
    def build(cls, spec: LinearSpec) -> CpuLinear | JoinedLinear:
        """See `LinearBackend`; the gate is left to the caller where parts are of several kinds."""
        (first, *_), dtype = spec.weights, spec.like.dtype
        if isinstance(first, Tensor | Rounding):
            return cls(first, spec.bias, dtype=dtype, **_arguments(spec))
        parts = merge([part for part in spec.weights if isinstance(part, BlockQuantized)])
        if len(parts) > 1:
            return join(parts, spec.bias, dtype, spec.out_dtype, spec.adapters)
        return cls(parts[0], spec.bias, dtype=dtype, **_arguments(spec))

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        if x.ndim != 2:
            assert not self.applies_gate or residual is None, "adapters are of flat rows"
            flat = None if residual is None else residual.reshape(-1, self.columns)
            return self(x.reshape(-1, self.depth), flat).view(*x.shape[:-1], self.columns)
        out = x.new_empty((x.shape[0], self.columns), dtype=self.out_dtype)
        if residual is not None:
            residual = residual.contiguous()
        self.write(x, residual, out)
        return out

    def write(self, x: Tensor, residual: Tensor | None, out: Tensor) -> None:
        """As a call, into `out` [T, columns]; it and `residual` may be columns of wider tensors,
        see `join`. With a gate, `residual` is what adapters add before it: float32
        [T, 2 * columns], read in the rows that have one."""
        rows, depth = x.shape
        assert x.dtype is self._dtype and depth == self.depth, "x does not fit the weight"
        assert out.shape == (rows, self.columns) and out.dtype is self.out_dtype
        if residual is not None and self.applies_gate:
            assert self._adapters is not None and residual.dtype is torch.float32
            assert residual.shape == (rows, 2 * self.columns)
        elif residual is not None:
            assert residual.shape == out.shape and residual.dtype is self._dtype
        stride, step = x.stride()
        if step != 1:
            x, stride = x.contiguous(), depth
        self._run(self._address, x, rows, stride, residual, out)

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        packed = len(self._panels)
        columns = packed * 2 * self._width
        plain = _Weight.from_buffer_copy(self._weight)
        plain.columns = plain.stride = columns
        plain.bias, plain.factors, plain.activation, plain.output_is_float = None, None, 0, 1
        out = torch.empty(len(x), columns, dtype=torch.float32)
        x = x.contiguous()
        self._run(ctypes.addressof(plain), x, len(x), self.depth, None, out)
        if not self.applies_gate:
            return out[:, : self.columns]
        halves = out.view(len(x), packed, 2, self._width).transpose(1, 2).flatten(2)
        return halves[..., : self.columns].flatten(1)

    def put_factors(self, slot: int, factors: Tensor | None) -> bool:
        """See `LinearKernel`."""
        if self._adapters is None:
            return False
        if factors is not None:
            factors = arranged(factors.float(), self._width, self.applies_gate)
        self._factors.put(slot, factors)
        self._weight.factors = self._factors.address
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self._panels.nbytes if self._compact is None else self._compact.nbytes

    @property
    def has_rows(self) -> bool:
        """Whether `rows` can be called."""
        return self._is_float and not self.applies_gate

    def rows(self, numbers: Tensor) -> Tensor:
        """Rows of the weight, by int64 [T]: [T, in_features]."""
        assert self.has_rows
        if self._compact is not None:
            return self._compact_rows(numbers.contiguous())
        columns = 2 * self._width
        packed = self._panels[numbers // columns, :, numbers % columns]
        return packed.flatten(1)[:, : self.depth]

    def _compact_rows(self, numbers: Tensor) -> Tensor:
        out = torch.empty(len(numbers), self.depth, dtype=torch.bfloat16)
        self._copy_rows(self._address, numbers, len(numbers), out)
        return out

    def join(self, stride: int) -> None:
        """From now on `write` takes columns of tensors that are `stride` wide."""
        self._weight.stride = stride


def _arguments(spec: LinearSpec) -> dict[str, Any]:
    """The fields of a spec that a kernel takes unchanged."""
    return {"gate": spec.gate, "out_dtype": spec.out_dtype, "adapters": spec.adapters}


def join(
    blocks: Sequence[BlockQuantized | Rounding],
    bias: Tensor | None,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None,
    adapters: Tensor | None = None,
) -> CpuLinear | JoinedLinear:
    """The kernel of a weight whose rows come in several kinds."""
    rows = [some.shape[0] for some in blocks]
    biases = [None] * len(rows) if bias is None else list(torch.split(bias, rows))
    kernels = [
        CpuLinear(some, part, dtype=dtype, out_dtype=out_dtype, adapters=adapters)
        for some, part in zip(blocks, biases, strict=True)
    ]
    return kernels[0] if len(kernels) == 1 else JoinedLinear(kernels)


class JoinedLinear:
    """Products of one x side by side: parts of a fused weight that are quantised differently."""

    applies_gate = False

    def __init__(self, parts: list[CpuLinear]) -> None:
        self._parts = parts
        self._columns = sum(part.columns for part in parts)
        self.nbytes = sum(part.nbytes for part in parts)
        for part in parts:
            part.join(self._columns)

    @property
    def layout(self) -> str:
        """See `MovableKernel`."""
        return " and ".join(part.layout for part in self._parts)

    def tensors(self) -> dict[str, Tensor]:
        """See `MovableKernel`."""
        tensors = dict[str, Tensor]()
        for number, part in enumerate(self._parts):
            tensors |= prefixed(str(number), part.tensors())
        return tensors

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> JoinedLinear:
        """See `MovableKernel`."""
        return JoinedLinear(
            [
                part.with_tensors(without_prefix(str(number), tensors))
                for number, part in enumerate(self._parts)
            ]
        )

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`; x is [T, in_features]."""
        out = torch.empty((len(x), self._columns), dtype=self._parts[0].out_dtype)
        if residual is not None:
            residual = residual.contiguous()
        first = 0
        for part in self._parts:
            columns = slice(first, first + part.columns)
            part.write(x, None if residual is None else residual[:, columns], out[:, columns])
            first += part.columns
        return out

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        return torch.cat([part.sums(x) for part in self._parts], -1)

    def put_factors(self, slot: int, factors: Tensor | None) -> bool:
        """See `LinearKernel`."""
        columns = [part.columns for part in self._parts]
        each = [None] * len(columns) if factors is None else torch.split(factors, columns)
        return all([p.put_factors(slot, f) for p, f in zip(self._parts, each, strict=True)])
