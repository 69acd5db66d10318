"""Attention and feed-forward whose weights several layers share, each with adapters of its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import gating


class LowRank(Bare):
    """x A^T B^T of several parts side by side, each with a B and an A of its own."""

    def __init__(
        self, in_features: int, rank: int, parts: Mapping[str, int], context: BuildContext
    ) -> None:
        super().__init__()
        downs = {f"{role}_adapter_down": rank for role in parts}
        self.down = Linear(in_features, downs, context)
        self.ups = nn.ModuleList(
            Linear(rank, {f"{role}_adapter_up": size}, context) for role, size in parts.items()
        )

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, all parts]."""
        narrow = self.down(x).chunk(len(self.ups), dim=-1)
        return torch.cat([up(part) for up, part in zip(self.ups, narrow, strict=True)], -1)


class Adapted(Bare):
    """A shared projection plus the adapter of one layer, if it has one."""

    def __init__(self, base: nn.Module, adapter: LowRank | None) -> None:
        super().__init__()
        self.base, self.adapter = base, adapter

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] to [T, out_features]."""
        out: Tensor = self.base(x, None if self.adapter is None else self.adapter(x))
        return out


class SharedAttention(Attention):
    """Attention of a `spec.SharedAttention`: its input is twice as wide as its output."""

    def __init__(self, settings: spec.SharedAttention, hidden: int, context: BuildContext) -> None:
        super().__init__(settings, hidden, context, width=2 * hidden)
        query = settings.num_heads * settings.head_dim
        kv = settings.num_kv_heads * settings.head_dim
        parts, adapter = {"query": query, "key": kv, "value": kv}, None
        if settings.adapter_rank is not None:
            adapter = LowRank(2 * hidden, settings.adapter_rank, parts, context)
        self.project: Adapted = Adapted(self.project, adapter)

    def share(self, owner: SharedAttention) -> None:
        """Drop the own weights for those of the first layer of the block; adapters stay."""
        self.project.base, self.output = owner.project.base, owner.output


class SharedGlu(Bare):
    """down(activation(gate) * up) of a `spec.SharedGlu`; gate and up with an adapter."""

    def __init__(self, settings: spec.SharedGlu, hidden: int, context: BuildContext) -> None:
        super().__init__()
        size, bias = settings.intermediate, settings.bias
        self._gating = gating(settings)
        self.gate_up = Linear(hidden, {"gate": size, "up": size}, context, bias=bias)
        self.adapter_down = Linear(hidden, {"ffn_adapter_down": settings.adapter_rank}, context)
        ups = {"gate_adapter_up": size, "up_adapter_up": size}
        self.adapter_up = Linear(settings.adapter_rank, ups, context)
        self.down = Linear(size, {"down": hidden}, context, bias=bias)

    def share(self, owner: SharedGlu) -> None:
        """Drop the own weights for those of the first layer of the block; the adapter stays."""
        self.gate_up, self.down = owner.gate_up, owner.down

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        both = self.gate_up(x, self.adapter_up(self.adapter_down(x)))
        out: Tensor = self.down(self._gating(*both.chunk(2, dim=-1)), residual)
        return out


def beside_embeddings(x: Tensor, step: ForwardContext) -> Tensor:
    """The stream [T, hidden] and the embeddings, side by side: [T, 2 * hidden]."""
    return torch.cat((x, step.embedded[0]), -1)
