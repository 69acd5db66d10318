"""Linear layers whose rows may come from several checkpoint tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from baton_worker.kernels.linear import LinearKernel, PackedLinear, PlainLinear
from baton_worker.layers.layer import Layer, Site


class Linear(Layer):
    """y = x W^T + b. `parts` maps roles to row counts: {"query": 576, "key": 192, "value": 192}
    is one matrix product over three checkpoint tensors."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self, in_features: int, parts: Mapping[str, int], site: Site, *, bias: bool = False
    ) -> None:
        super().__init__()
        out_features = sum(parts.values())
        self._parts = {site.name(role): rows for role, rows in parts.items()}
        self.weight = site.empty(out_features, in_features)
        self.bias = site.empty(out_features) if bias else None
        self._kernel: LinearKernel = PlainLinear(self.weight, self.bias)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """One weight, and one bias where there is one, per part."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                slices = torch.split(parameter, list(self._parts.values()))
                for name, rows in zip(self._parts, slices, strict=True):
                    yield f"{name}.{suffix}", rows

    def finish(self) -> None:
        """Give the weight the layout that its device likes best; drop the original."""
        assert self.weight is not None
        if PackedLinear.refuses(self.weight) is None:
            self._kernel = PackedLinear(self.weight, self.bias)
            self.weight = None

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features], plus `residual` of that shape."""
        return self._kernel(x, residual)


class LanguageHead(Linear):
    """Logits. A tied head shares the weight of the embedding table and loads nothing."""

    def __init__(
        self, hidden: int, vocab: int, site: Site, *, tied_to: nn.Parameter | None = None
    ) -> None:
        super().__init__(hidden, {"head": vocab}, site)
        self.tied = tied_to is not None
        if tied_to is not None:
            self.weight = tied_to
            self._kernel = PlainLinear(tied_to, None)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """None when tied: the embedding fills the weight."""
        return iter(()) if self.tied else super().destinations()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[R, hidden] to float32 logits [R, vocab]."""
        return super().forward(x, residual).to(torch.float32)
