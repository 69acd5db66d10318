"""Linear kernels: their contract, their registry, and those that use the checkpoint's layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.kernels.fp8 import Fp8Weight
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.quantized_weights import Rounding
from baton_worker.kernels.triton import runs
from baton_worker.kernels.weight import QuantizedWeight

LinearWeight: TypeAlias = Tensor | QuantizedWeight | Rounding
"""[N, K]: floats, quantised, or floats that are quantised on the way into a kernel's layout."""


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """Requirements of a layer on a kernel."""

    weights: Sequence[LinearWeight]
    """Their rows make up the layer's weight. Floats come alone."""
    bias: Tensor | None
    """One value per row of all."""
    like: Tensor
    """A tensor on the device and of the dtype of the inputs."""
    out_dtype: torch.dtype | None = None
    """What the caller would like. The CPU's kernel has float32 sums to give, and so have products
    of 16-bit floats and of packed weights on an NVIDIA GPU, see `has_wide_sums`."""
    gate: str | None = None
    """The name in `kernels.cpu.linear.GATES` of what combines the two halves of the result, gate
    rows first. A kernel may leave it to the caller, see `LinearKernel.applies_gate`."""
    row_block: int = 0
    """On a GPU, rows of every product: libraries choose kernels, and orders of sums, by the number
    of rows. 0: as many as there are."""
    adapters: Tensor | None = None
    """int32: the number of the adapter of each row, below 0 for none. A kernel that applies the
    gate then takes as `residual` what adapters add before it, float32 [T, out_features]."""


class LinearKernel(Protocol):
    """y = x W^T (+ bias) (+ residual) for a weight fixed at construction."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weight in the kernel's layout; 0 if it reads the given tensor."""
        ...

    @property
    def applies_gate(self) -> bool:
        """True if the kernel applies the gate that its `LinearSpec` requires: [T, out_features /
        2]."""
        ...

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features]; `residual` has the shape of the result."""
        ...

    def sums(self, x: Tensor) -> Tensor:
        """x W^T alone, before bias, gate and factors: float32 [T, rows of the weight]. Not for
        steps that are captured."""
        ...

    def put_factors(self, slot: int, factors: Tensor | None) -> bool:
        """Multiply the sums of rows whose adapter has this number by `factors` from now on, float32
        [rows of the weight], before a bias; None: by nothing. Returns whether the kernel does that;
        otherwise its caller does."""
        ...


class WithoutFactors(ABC):
    """A kernel that leaves factors to its caller, with its bias in `_bias`."""

    _bias: Tensor | None

    @abstractmethod
    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        y = self(x).float()
        return y if self._bias is None else y - self._bias

    def put_factors(self, slot: int, factors: Tensor | None) -> bool:
        """See `LinearKernel`."""
        return False


class RowBlockLinear(WithoutFactors):
    """Products of `_row_block` rows each, padded with zeros; 0: of as many as there are."""

    _row_block: int

    @abstractmethod
    def _rows(self, x: Tensor) -> Tensor:
        """Products [n, N] of rows [n, K], without the bias."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        flat = x.reshape(-1, x.shape[-1])
        rows, block = len(flat), self._row_block
        if block:
            flat = F.pad(flat, (0, 0, 0, -rows % block))
        results = [self._rows(some) for some in torch.split(flat, block or max(1, rows))]
        y = (results[0] if len(results) == 1 else torch.cat(results))[:rows]
        y = y.view(*x.shape[:-1], y.shape[-1])
        y = y if self._bias is None else y + self._bias
        return y if residual is None else residual + y


class LinearBackend(Protocol):
    """The contract of a row of `LINEAR_KERNELS`."""

    def refuses(self, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """Why it cannot multiply a weight by inputs of the device and dtype of `like` (default: the
        weight), as half a sentence; None if it can."""
        ...

    def build(self, spec: LinearSpec) -> LinearKernel:
        """Build the kernel for weights that it does not refuse."""
        ...


LINEAR_KERNELS = Registry(
    "linear kernel",
    {
        "cpu": "baton_worker.kernels.cpu.linear:CpuLinear",
        "scaled_mm": "baton_worker.kernels.scaled_mm:ScaledMmLinear",
        "packed": "baton_worker.kernels.packed_linear:PackedLinear",
        "triton": "baton_worker.kernels.linear:TritonLinear",
        "int8": "baton_worker.kernels.cpu.int8_linear:Int8Linear",
        "rotated": "baton_worker.kernels.rotated_linear:RotatedLinear",
        "trellis": "baton_worker.kernels.cpu.trellis_linear:TrellisLinear",
        "onednn": "baton_worker.kernels.linear:OneDnnLinear",
        "plain": "baton_worker.kernels.linear:PlainLinear",
    },
)
"""In order of preference."""


def choose(spec: LinearSpec) -> LinearKernel:
    """The first kernel that accepts all of the weights.

    Raises:
        ModelError: every kernel refuses; the message lists the reasons.
    """
    reasons = list[str]()
    for name in LINEAR_KERNELS.names():
        backend: LinearBackend = LINEAR_KERNELS.load(name)
        refused = (backend.refuses(weight, spec.like) for weight in spec.weights)
        reason = next((why for why in refused if why is not None), None)
        if reason is None:
            return backend.build(spec)
        reasons.append(f"{name} refused: {reason}")
    raise ModelError(f"No kernel multiplies with this weight: {'; '.join(reasons)}.")


def has_kernel(weight: LinearWeight, like: Tensor) -> bool:
    """True if a kernel multiplies inputs like `like` by the weight without conversion."""
    backends: list[LinearBackend] = [LINEAR_KERNELS.load(name) for name in LINEAR_KERNELS.names()]
    return any(backend.refuses(weight, like) is None for backend in backends)


def has_wide_sums(device: torch.device, dtype: torch.dtype) -> bool:
    """True if torch multiplies inputs of this dtype into float32 results: cuBLAS does, of 16-bit
    floats. Its sums are float32 in any case, and are rounded only as they are stored."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and dtype in (torch.bfloat16, torch.float16)


class PlainLinear(WithoutFactors):
    """The plain twin: `torch.nn.functional.linear`, any device and dtype.

    Args:
        row_block, out_dtype: see `LinearSpec`.
    """

    nbytes = 0
    applies_gate = False

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        row_block: int = 0,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._row_block = row_block
        wide = out_dtype is torch.float32 and has_wide_sums(weight.device, weight.dtype)
        self._wide = out_dtype if wide else None

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        return None if isinstance(weight, Tensor) else "it multiplies with floats"

    @classmethod
    def build(cls, spec: LinearSpec) -> PlainLinear:
        """See `LinearBackend`."""
        return cls(_floats(spec), spec.bias, spec.row_block, spec.out_dtype)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        y = self._product(x, self._bias)
        return y if residual is None else residual + y

    @property
    def layout(self) -> str:
        """See `kernels.movable.MovableKernel`."""
        return f"plain {[*self._weight.shape]} {self._weight.dtype} {self._bias is not None}"

    def tensors(self) -> dict[str, Tensor]:
        """See `MovableKernel`."""
        bias = {} if self._bias is None else {"bias": self._bias}
        return {"weight": self._weight} | bias

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> PlainLinear:
        """See `MovableKernel`."""
        return PlainLinear(tensors["weight"], tensors.get("bias"), self._row_block, self._wide)

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        return self._product(x, None).float()

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows, block = len(x), self._row_block
        if not block or not rows:
            return self._whole(x, bias)
        parts = torch.split(F.pad(x, (0, 0, 0, -rows % block)), block)
        results = [self._whole(part, bias) for part in parts]
        return (results[0] if len(results) == 1 else torch.cat(results))[:rows]

    def _whole(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """One product of all rows."""
        if self._wide is None:
            return F.linear(x, self._weight, bias)
        flat = x.reshape(-1, x.shape[-1])
        y = torch.mm(flat, self._weight.T, out_dtype=self._wide).view(*x.shape[:-1], -1)
        return y if bias is None else y + bias


class OneDnnLinear(WithoutFactors):
    """oneDNN with a prepacked weight, where the C++ kernels are not available.

    `F.linear` reorders the weight into oneDNN's blocked layout in every call, which costs more than
    the product at a few rows. Here it is reordered once. The residual is added inside the product,
    before the result is rounded.
    """

    _DTYPES = (torch.bfloat16, torch.float32)
    applies_gate = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        assert self.refuses(weight) is None
        self.nbytes = weight.nbytes
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._bias = bias
        self._linear = torch.ops.mkldnn._linear_pointwise.default
        self._linear_binary = torch.ops.mkldnn._linear_pointwise.binary

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if not isinstance(weight, Tensor):
            return "it multiplies with floats"
        if weight.device.type != "cpu":
            return "it is not on the CPU"
        if weight.dtype not in cls._DTYPES:
            return f"oneDNN is not used for {weight.dtype}"
        if not torch.backends.mkldnn.is_available():
            return "this build of torch has no oneDNN"
        if weight.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "this CPU has no fast bfloat16"
        return None

    @classmethod
    def build(cls, spec: LinearSpec) -> OneDnnLinear:
        """See `LinearBackend`."""
        return cls(_floats(spec), spec.bias)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        y: Tensor
        if residual is None:
            y = self._linear(x, self._weight, self._bias, "none", [], "")
        else:
            y = self._linear_binary(x, residual, self._weight, self._bias, "add")
        return y

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        y: Tensor = self._linear(x, self._weight, None, "none", [], "")
        return y.float()


TRITON_PRODUCTS: dict[type, str] = {
    GptqWeight: "baton_worker.kernels.triton.gptq",
    Fp8Weight: "baton_worker.kernels.triton.fp8",
}
"""The module with `refuses(weight, device)` and `product(x, weight)` for a class of weights."""


class TritonLinear(WithoutFactors):
    """Products on a GPU with quantised weights in the layout of their checkpoint; parts of a fused
    weight side by side.

    Args:
        parts: the weights that make up the layer's rows, each with its own scales.
        bias: one value per row of all parts.
        device: device of the product.
        row_block: rows of a call of a kernel, which may choose how to multiply by their number; 0:
            all.
    """

    applies_gate = False

    def __init__(
        self,
        parts: Sequence[QuantizedWeight],
        bias: Tensor | None,
        device: torch.device,
        row_block: int = 0,
    ) -> None:
        self._row_block = row_block
        on_device = [part.to(device) for part in parts]
        products = [_triton(part).product for part in parts]
        self._parts: list[tuple[Callable[[Tensor, QuantizedWeight], Tensor], QuantizedWeight]]
        self._parts = list(zip(products, on_device, strict=True))
        self._bias = bias
        self.nbytes = sum(part.nbytes for part in on_device)

    @classmethod
    def refuses(cls, weight: LinearWeight, like: Tensor | None = None) -> str | None:
        """See `LinearBackend`."""
        if isinstance(weight, Tensor | Rounding):
            return "it multiplies with weights as a checkpoint stores them"
        if like is None or not runs(like.device):
            return "it needs a GPU"
        if type(weight) not in TRITON_PRODUCTS:
            return "there is no kernel for it"
        reason: str | None = _triton(weight).refuses(weight, like.device)
        return reason

    @classmethod
    def build(cls, spec: LinearSpec) -> TritonLinear:
        """See `LinearBackend`."""
        parts = [part for part in spec.weights if not isinstance(part, Tensor | Rounding)]
        return cls(parts, spec.bias, spec.like.device, spec.row_block)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """See `LinearKernel`."""
        y = self._product(x.reshape(-1, x.shape[-1]))
        y = y.view(*x.shape[:-1], y.shape[-1])
        y = y if self._bias is None else y + self._bias
        return y if residual is None else residual + y

    def sums(self, x: Tensor) -> Tensor:
        """See `LinearKernel`."""
        return self._product(x).float()

    def _product(self, flat: Tensor) -> Tensor:
        blocks = torch.split(flat, self._row_block or max(1, len(flat)))
        parts = [
            torch.cat([product(rows, part) for rows in blocks])
            if len(blocks) > 1
            else product(flat, part)
            for product, part in self._parts
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _triton(weight: QuantizedWeight) -> Any:
    """The module of a weight; imported here, since it needs triton."""
    return import_module(TRITON_PRODUCTS[type(weight)])


def _floats(spec: LinearSpec) -> Tensor:
    (weight,) = spec.weights
    assert isinstance(weight, Tensor)
    return weight
