"""Projections that clamp what goes in and what comes out (Gemma 4's encoders)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import gating

_BOUNDS = ("input_min", "input_max", "output_min", "output_max")


class BoundedLinear(Bare):
    """clamp(clamp(x) W^T) for each part, as `layers.linear.Linear` beside it; each has four bounds
    in the checkpoint, beside its weight."""

    def __init__(self, in_features: int, parts: Mapping[str, int], context: BuildContext) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_Part(in_features, *part, context) for part in parts.items())

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features], plus `residual` of that shape."""
        y = torch.cat([part(x) for part in self.parts], dim=-1)
        return y if residual is None else y + residual


class _Part(Bare):
    def __init__(self, in_features: int, role: str, rows: int, context: BuildContext) -> None:
        super().__init__()
        self.linear = Linear(in_features, {role: rows}, context)
        beside = replace(context, name=lambda bound: f"{context.name(role)}.{bound}")
        self.bounds = nn.ModuleList(Learned((), bound, beside) for bound in _BOUNDS)

    def forward(self, x: Tensor) -> Tensor:
        low, high, least, most = (bound() for bound in self.bounds)
        out: Tensor = self.linear(x.clamp(low, high)).clamp(least, most)
        return out


class BoundedGlu(Bare):
    """See `spec.BoundedGlu`."""

    def __init__(self, settings: spec.BoundedGlu, hidden: int, context: BuildContext) -> None:
        super().__init__()
        size = settings.intermediate
        self._gate = gating(settings)
        self.gate_up = BoundedLinear(hidden, {"gate": size, "up": size}, context)
        self.down = BoundedLinear(size, {"down": hidden}, context)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(self._gate(gate, up), residual)
        return out
