"""A gated feed-forward with few active channels."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.altup.sparse_gate import sparse_gate
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import GatedLinear, Linear
from baton_worker.layers.mlp import activation


class SparseGlu(Bare):
    """See `spec.SparseGlu`."""

    def __init__(self, settings: spec.SparseGlu, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._activation, self._name = activation(settings.activation), settings.activation
        deviations = NormalDist().inv_cdf(settings.sparsity)
        self._deviations = torch.tensor(deviations, dtype=context.dtype).item()
        self.add_up: Callable[[Tensor], Tensor] = lambda sums: sums
        """Sums over the channels of all ranks that have a part."""
        self.num_parts = 1
        size, bias = settings.intermediate, settings.bias
        self.gate_up = GatedLinear(hidden, size, context, self._gated, bias=bias)
        self.down = Linear(size, {"down": hidden}, context, bias=bias)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        out: Tensor = self.down(self.gate_up(x), residual)
        return out

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.num_parts == 1:
            gated = sparse_gate(self._name, self._deviations, gate, up)
            if gated is not None:
                return gated
        return self._twin(gate, up)

    def _twin(self, gate: Tensor, up: Tensor) -> Tensor:
        mean = self._mean(gate)
        deviation = self._mean((gate - mean).square()).sqrt()
        return self._activation(F.relu(gate - (mean + deviation * self._deviations))) * up

    def _mean(self, x: Tensor) -> Tensor:
        return self.add_up(x.sum(-1, keepdim=True)) / (x.shape[-1] * self.num_parts)
