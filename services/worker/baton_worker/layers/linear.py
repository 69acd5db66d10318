"""Linear layers whose rows may come from several checkpoint tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from baton_worker.kernels.cpu.linear import CpuLinear, JoinedLinear, join
from baton_worker.kernels.fp8 import Fp8Weight
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.linear import (
    LinearKernel,
    PlainLinear,
    Stored,
    StoredLinear,
    fastest,
)
from baton_worker.kernels.quantized_weights import (
    KINDS,
    BlockQuantized,
    Rounding,
    merge,
)
from baton_worker.layers.layer import BuildContext, Layer


class Linear(Layer):
    """y = x W^T + b. `parts` maps roles to row counts: {"query": 576, "key": 192, "value": 192}
    is one matrix product over three checkpoint tensors."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    out_dtype: torch.dtype | None = None
    """What a subclass would like to be given, see `fastest`."""
    quantised_as: str | None = None
    """The kind of `baton_worker.kernels.quantized_weights.KINDS` to which weights are rounded; None
    is not at all."""

    def __init__(
        self, in_features: int, parts: Mapping[str, int], site: BuildContext, *, bias: bool = False
    ) -> None:
        super().__init__()
        out_features = sum(parts.values())
        self._parts = {site.name(role): rows for role, rows in parts.items()}
        self.weight = site.empty(out_features, in_features)
        self.bias = site.empty(out_features) if bias else None
        self._kernel: LinearKernel = PlainLinear(self.weight, self.bias)
        self._taken = dict[str, Stored]()
        self._weight_bytes = 0

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """One weight, and one bias where there is one, per part."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                slices = torch.split(parameter, list(self._parts.values()))
                for name, rows in zip(self._parts, slices, strict=True):
                    yield f"{name}.{suffix}", rows

    def load_quantized(self, name: str, weight: Stored) -> bool:
        """Take the weight of a part where a kernel runs it as it is."""
        part, _, suffix = name.rpartition(".")
        like = self.weight
        if suffix != "weight" or part not in self._parts or like is None:
            return False
        if weight.shape != (self._parts[part], like.shape[1]) or not _runs(weight, like):
            return False
        self._taken[part] = weight
        return True

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weight; 0 while the parameter is used as it is."""
        return self._weight_bytes

    def process_weights_after_loading(self) -> None:
        """Give the weight the layout that its device likes best; drop the original."""
        assert self.weight is not None
        taken = self._all_taken()
        blocks: Sequence[BlockQuantized | Rounding] = merge(
            [w for w in taken if isinstance(w, BlockQuantized)]
        )
        if not taken and self.quantised_as is not None:
            blocks = self._quantised(self.quantised_as)
        if blocks:
            self._use(self._quantised_kernel(blocks))
        elif taken:
            self._use(self._stored_kernel(taken))
        else:
            self._use(self._float_kernel())

    def _all_taken(self) -> list[Stored]:
        """What was taken, part by part; empty if nothing was, or not every part."""
        taken, self._taken = self._taken, {}
        if len(taken) == len(self._parts):
            return [taken[part] for part in self._parts]
        # The others came as floats: there is one kernel for all.
        for name, rows in self.weight_targets():
            if (part := name.removesuffix(".weight")) in taken:
                rows.copy_(taken[part].dequantise())
        return []

    def _quantised(self, kind: str) -> list[Rounding]:
        """The weight to be rounded to a kind; rounded here where no kernel runs that."""
        assert self.weight is not None
        if self.weight.shape[1] % KINDS[kind].multiple:
            return []
        rounding = Rounding(self.weight, kind)
        if CpuLinear.refuses(rounding, self.weight) is None:
            return [rounding]
        # A new parameter: a tied head shares the old one.
        self.weight = nn.Parameter(torch.empty_like(self.weight), requires_grad=False)
        rounding.into(self.weight)
        self._kernel = PlainLinear(self.weight, self.bias)
        return []

    def _quantised_kernel(self, blocks: Sequence[BlockQuantized | Rounding]) -> LinearKernel:
        assert self.weight is not None
        return join(blocks, self.bias, self.weight.dtype, self.out_dtype)

    def _stored_kernel(self, weights: Sequence[Stored]) -> LinearKernel:
        assert self.weight is not None
        parts = [weight for weight in weights if isinstance(weight, GptqWeight | Fp8Weight)]
        return StoredLinear(parts, self.bias, self.weight.device)

    def _float_kernel(self) -> LinearKernel:
        assert self.weight is not None
        return fastest(self.weight, self.bias, out_dtype=self.out_dtype)

    def _use(self, kernel: LinearKernel) -> None:
        self._kernel = kernel
        if not isinstance(kernel, PlainLinear):
            assert self.weight is not None
            self._weight_bytes = self.weight.nbytes
            self.weight = None
        if isinstance(kernel, CpuLinear | JoinedLinear | StoredLinear):
            self._weight_bytes = kernel.nbytes

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features], plus `residual` of that shape."""
        return self._kernel(x, residual)


def _runs(weight: Stored, like: Tensor) -> bool:
    """Whether a kernel multiplies with the weight as it is, on the device of `like`."""
    if isinstance(weight, BlockQuantized):
        return CpuLinear.refuses(weight, like) is None
    return StoredLinear.refuses(weight, like) is None


class GatedLinear(Linear):
    """gate(g, u) of the two halves g and u of one product.

    Args:
        gate: what a feed-forward does with g and u, each [T, size].
        fused: the name in `baton_worker.kernels.cpu.linear.GATES` of that same function, which
            a kernel may then apply to its sums; None if it has none.
    """

    def __init__(
        self,
        in_features: int,
        size: int,
        site: BuildContext,
        gate: Callable[[Tensor, Tensor], Tensor],
        *,
        fused: str | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(in_features, {"gate": size, "up": size}, site, bias=bias)
        self._gate, self._fused = gate, fused

    def _quantised_kernel(self, blocks: Sequence[BlockQuantized | Rounding]) -> LinearKernel:
        if self._fused is None or len(blocks) > 1:
            self._fused = None
            return super()._quantised_kernel(blocks)
        assert self.weight is not None
        return CpuLinear(blocks[0], self.bias, gate=self._fused, dtype=self.weight.dtype)

    def _stored_kernel(self, weights: Sequence[Stored]) -> LinearKernel:
        self._fused = None
        return super()._stored_kernel(weights)

    def _float_kernel(self) -> LinearKernel:
        assert self.weight is not None
        if self._fused is None or CpuLinear.refuses(self.weight) is not None:
            self._fused = None
            return super()._float_kernel()
        return CpuLinear(self.weight, self.bias, gate=self._fused)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, size]; a gate has no residual."""
        assert residual is None
        y = super().forward(x)
        fused = self._fused is not None and self.weight is None
        return y if fused else self._gate(*y.chunk(2, dim=-1))


class Shared(Protocol):
    """An embedding table whose rows a tied head uses too."""

    weight: nn.Parameter | None

    def lend(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Look rows up through `rows` from now on, and drop the weight."""
        ...


class LanguageHead(Linear):
    """Logits. A tied head shares the weight of the embedding table and loads nothing."""

    out_dtype = torch.float32

    def __init__(
        self, hidden: int, vocab: int, site: BuildContext, *, tied_to: Shared | None = None
    ) -> None:
        super().__init__(hidden, {"head": vocab}, site)
        self.tied = tied_to is not None
        self._lend = None if tied_to is None else tied_to.lend
        if tied_to is not None:
            assert tied_to.weight is not None
            self.weight = tied_to.weight
            self._kernel = PlainLinear(tied_to.weight, None)
            self._parts = {site.name("embedding"): vocab}

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """None when tied: the embedding fills the weight."""
        return iter(()) if self.tied else super().weight_targets()

    def awaited_weights(self) -> Iterator[str]:
        """What it fills itself, and the embedding table if that is its weight."""
        yield from super().awaited_weights()
        if self.tied:
            yield from (f"{part}.weight" for part in self._parts)

    def process_weights_after_loading(self) -> None:
        """As any linear. A table of floats that is packed is not kept a second time."""
        super().process_weights_after_loading()
        if self._lend is not None and isinstance(self._kernel, CpuLinear) and self._kernel.has_rows:
            self._lend(self._kernel.rows)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[R, hidden] to float32 logits [R, vocab]."""
        return super().forward(x, residual).to(torch.float32)
