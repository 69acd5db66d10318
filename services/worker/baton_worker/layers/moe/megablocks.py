"""Ungated experts with weights stacked in two matrices: see `spec.MegablocksExperts`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import activation


class MegablocksExperts(nn.Module):
    """sum over the selected experts of weight * down(activation(up(x))), plus a bias."""

    def __init__(
        self, settings: spec.MegablocksExperts, hidden: int, context: BuildContext
    ) -> None:
        super().__init__()
        self._top_k = settings.top_k
        self.router = Linear(hidden, {"router": settings.num_experts}, context)
        self.experts = _Stacked(settings, hidden, context)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        weights, chosen = self.router(x).float().softmax(-1).topk(self._top_k, dim=-1)
        out: Tensor = self.experts(x, weights.to(x.dtype), chosen)
        return out if residual is None else residual + out


class _Stacked(Layer):
    """All experts: up [E * intermediate, hidden], down of the same shape, one bias [hidden]."""

    def __init__(
        self, settings: spec.MegablocksExperts, hidden: int, context: BuildContext
    ) -> None:
        super().__init__()
        self._name, self._num = context.name("experts"), settings.num_experts
        self._activation = activation(settings.activation)
        self.up = context.empty(settings.num_experts * settings.intermediate, hidden)
        self.down = context.empty(settings.num_experts * settings.intermediate, hidden)
        self.bias = context.empty(hidden)

    @property
    def capture_blocker(self) -> str | None:
        """See `Layer`."""
        return "the host asks which experts without gates have tokens"

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Two matrices and the bias; the matrices' names have no suffix."""
        yield f"{self._name}.mlp.w1", self.up
        yield f"{self._name}.mlp.w2", self.down
        yield f"{self._name}.bias", self.bias

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, hidden], weights and expert ids [T, top_k] to [T, hidden]."""
        out = self.bias.expand_as(x).clone()
        up, down = self.up.chunk(self._num), self.down.chunk(self._num)
        for expert in torch.unique(chosen).tolist():
            tokens, slot = (chosen == expert).nonzero(as_tuple=True)
            inner = self._activation(F.linear(x[tokens], up[expert]))
            out.index_add_(0, tokens, inner @ down[expert] * weights[tokens, slot, None])
        return out
