"""QKV projections other than one plain product, and the output gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import GATES
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm


def projection(settings: spec.Attention, hidden: int, context: BuildContext) -> nn.Module:
    """x [T, hidden] to each token's heads [q ... q k ... k v ... v], flat, all `head_dim` wide."""
    if settings.projections.query is not None:
        return LowRankQuery(settings, hidden, context)
    if settings.values is not None:
        return PaddedValue(settings, hidden, context)
    query = settings.num_heads * settings.head_dim
    kv = settings.num_kv_heads * settings.head_dim
    parts = {"query": query, "key": kv, "value": kv}
    projections = settings.projections
    return Linear(hidden, parts, context, bias=projections.bias, unbiased=projections.unbiased)


class PaddedValue(nn.Module):
    """Values narrower than keys: scaled and zero-padded to the cache width; for
    `layers.attention.sinks.SinkKeys` the first padding channel is one."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__()
        assert settings.values is not None
        self._settings, self._values = settings, settings.values
        query = settings.num_heads * settings.head_dim
        key = settings.num_kv_heads * settings.head_dim
        value = settings.num_kv_heads * settings.value_dim
        parts = {"query": query, "key": key, "value": value}
        self._sizes = (query + key, value)
        self.project = Linear(hidden, parts, context, bias=settings.projections.bias)

    def forward(self, x: Tensor) -> Tensor:
        """See `projection`."""
        settings, values = self._settings, self._values
        wide, value = self.project(x).split(self._sizes, dim=-1)
        padded = x.new_zeros((x.shape[0], settings.num_kv_heads, settings.head_dim))
        value = value.unflatten(-1, (settings.num_kv_heads, -1)) * values.scale
        padded[..., : values.dim] = value
        if settings.sink_keys:
            padded[..., values.dim] = 1
        return torch.cat((wide, padded.flatten(1)), dim=-1)


class LowRankQuery(nn.Module):
    """Low-rank, normed queries (multi-matrix factorisation attention, Hu et al. 2024,
    arXiv:2412.19255)."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__()
        query = settings.projections.query
        assert query is not None
        rank, kv = query.rank, settings.num_kv_heads * settings.head_dim
        self._sizes = (rank, 2 * kv)
        parts = {"query_narrow": rank, "key": kv, "value": kv}
        self.project = Linear(hidden, parts, context, bias=settings.projections.bias)
        self.norm = norm(query.norm, rank, "query_narrow_norm", context)
        self.widen = Linear(rank, {"query": settings.num_heads * settings.head_dim}, context)

    def forward(self, x: Tensor) -> Tensor:
        """See `projection`."""
        narrow, rest = self.project(x).split(self._sizes, dim=-1)
        return torch.cat((self.widen(self.norm(narrow)), rest), dim=-1)


class HeadGate(nn.Module):
    """Output gate: attention output times the sigmoid, or softplus, of a projection of the
    attention input."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__()
        gate = settings.gate
        assert gate is not None
        width = settings.value_dim if gate.per == "channel" else 1
        parts = {"attention_gate": settings.num_heads * width}
        self.project = Linear(hidden, parts, context, bias=gate.bias)
        self._gated = GATES[gate.function]

    def forward(self, attended: Tensor, x: Tensor) -> Tensor:
        """attended [T, num_heads * dim] and x [T, hidden] to the shape of `attended`."""
        return self._gated(attended, self.project(x))
