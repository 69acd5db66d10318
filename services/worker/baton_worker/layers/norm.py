"""Norms over the last axis."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.layer import Layer, Site
from baton_worker.models import spec


class RmsNorm(Layer):
    """x / rms(x) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, settings: spec.Norm, size: int, role: str, site: Site) -> None:
        super().__init__()
        self._name = site.name(role)
        self._shape = (size,)
        self._eps = settings.eps
        self.weight = site.empty(size)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """The scale."""
        yield f"{self._name}.weight", self.weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape and dtype; the mean square is taken in float32."""
        return F.rms_norm(x, self._shape, self.weight, self._eps)
