"""Linear layers whose rows may come from several checkpoint tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from baton_worker.kernels.cpu.linear import CpuLinear, JoinedLinear, join
from baton_worker.kernels.linear import LinearKernel, PlainLinear, fastest
from baton_worker.kernels.quantized import KINDS, Blocks, merge, quantise
from baton_worker.layers.layer import Layer, Site


class Linear(Layer):
    """y = x W^T + b. `parts` maps roles to row counts: {"query": 576, "key": 192, "value": 192}
    is one matrix product over three checkpoint tensors."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    out_dtype: torch.dtype | None = None
    """What a subclass would like to be given, see `fastest`."""
    quantised_as: str | None = None
    """The kind of `baton_worker.kernels.quantized.KINDS` to which weights are rounded; None is
    not at all."""

    def __init__(
        self, in_features: int, parts: Mapping[str, int], site: Site, *, bias: bool = False
    ) -> None:
        super().__init__()
        out_features = sum(parts.values())
        self._parts = {site.name(role): rows for role, rows in parts.items()}
        self.weight = site.empty(out_features, in_features)
        self.bias = site.empty(out_features) if bias else None
        self._kernel: LinearKernel = PlainLinear(self.weight, self.bias)
        self._blocks = dict[str, Blocks]()
        self._weight_bytes = 0

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """One weight, and one bias where there is one, per part."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                slices = torch.split(parameter, list(self._parts.values()))
                for name, rows in zip(self._parts, slices, strict=True):
                    yield f"{name}.{suffix}", rows

    def take(self, name: str, blocks: Blocks) -> bool:
        """Take the weight of a part where the CPU kernels run its blocks."""
        part, _, suffix = name.rpartition(".")
        weight = self.weight
        if suffix != "weight" or part not in self._parts or weight is None:
            return False
        fits = blocks.shape == (self._parts[part], weight.shape[1])
        if not fits or CpuLinear.refuses(blocks, weight) is not None:
            return False
        self._blocks[part] = blocks
        return True

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weight; 0 while the parameter is used as it is."""
        return self._weight_bytes

    def finish(self) -> None:
        """Give the weight the layout that its device likes best; drop the original."""
        assert self.weight is not None
        blocks = self._taken()
        if not blocks and self.quantised_as is not None:
            blocks = self._quantised(self.quantised_as)
        if blocks:
            self._use(self._quantised_kernel(blocks))
        else:
            self._use(self._float_kernel())

    def _taken(self) -> list[Blocks]:
        """What was taken, see `merge`; empty if nothing was, or not every part."""
        taken, self._blocks = self._blocks, {}
        if len(taken) == len(self._parts):
            return merge([taken[part] for part in self._parts])
        # The others came as floats: there is one kernel for all.
        for name, rows in self.destinations():
            if (part := name.removesuffix(".weight")) in taken:
                rows.copy_(taken[part].dequantise())
        return []

    def _quantised(self, kind: str) -> list[Blocks]:
        """The weight rounded to a kind; on its own where no kernel runs that."""
        assert self.weight is not None
        if self.weight.shape[1] % KINDS[kind].multiple:
            return []
        blocks = quantise(self.weight, kind)
        if CpuLinear.refuses(blocks, self.weight) is None:
            return [blocks]
        # A new parameter: a tied head shares the old one.
        rounded = blocks.dequantise().to(self.weight.dtype)
        self.weight = nn.Parameter(rounded, requires_grad=False)
        self._kernel = PlainLinear(self.weight, self.bias)
        return []

    def _quantised_kernel(self, blocks: list[Blocks]) -> LinearKernel:
        assert self.weight is not None
        return join(blocks, self.bias, self.weight.dtype, self.out_dtype)

    def _float_kernel(self) -> LinearKernel:
        assert self.weight is not None
        return fastest(self.weight, self.bias, out_dtype=self.out_dtype)

    def _use(self, kernel: LinearKernel) -> None:
        self._kernel = kernel
        if not isinstance(kernel, PlainLinear):
            assert self.weight is not None
            self._weight_bytes = self.weight.nbytes
            self.weight = None
        if isinstance(kernel, CpuLinear | JoinedLinear):
            self._weight_bytes = kernel.nbytes

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features], plus `residual` of that shape."""
        return self._kernel(x, residual)


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
        site: Site,
        gate: Callable[[Tensor, Tensor], Tensor],
        *,
        fused: str | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(in_features, {"gate": size, "up": size}, site, bias=bias)
        self._gate, self._fused = gate, fused

    def _quantised_kernel(self, blocks: list[Blocks]) -> LinearKernel:
        if self._fused is None or len(blocks) > 1:
            self._fused = None
            return super()._quantised_kernel(blocks)
        assert self.weight is not None
        return CpuLinear(blocks[0], self.bias, gate=self._fused, dtype=self.weight.dtype)

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
        self, hidden: int, vocab: int, site: Site, *, tied_to: Shared | None = None
    ) -> None:
        super().__init__(hidden, {"head": vocab}, site)
        self.tied = tied_to is not None
        self._lend = None if tied_to is None else tied_to.lend
        if tied_to is not None:
            assert tied_to.weight is not None
            self.weight = tied_to.weight
            self._kernel = PlainLinear(tied_to.weight, None)
            self._parts = {site.name("embedding"): vocab}

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """None when tied: the embedding fills the weight."""
        return iter(()) if self.tied else super().destinations()

    def finish(self) -> None:
        """As any linear. A table of floats that is packed is not kept a second time."""
        super().finish()
        if self._lend is not None and isinstance(self._kernel, CpuLinear) and self._kernel.has_rows:
            self._lend(self._kernel.rows)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[R, hidden] to float32 logits [R, vocab]."""
        return super().forward(x, residual).to(torch.float32)
