"""Attention with normed values, and layers that read the pages of an earlier one (Gemma 3n and
4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.rope import rotate_


class NormedValueAttention(Attention):
    """See `spec.NormedValueAttention`."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__(settings, hidden, context)
        assert settings.qk_norm is not None
        unscaled = spec.Norm(settings.qk_norm.norm.eps, scaled=False)
        self.value_norm = norm(unscaled, settings.head_dim, "value", context)

    def _norm(self, heads: Tensor) -> None:
        super()._norm(heads)
        values = heads[:, self.call.num_heads + self.call.num_kv_heads :]
        assert self.value_norm is not None
        values.copy_(self.value_norm(values))


class KeyAsValueAttention(NormedValueAttention):
    """See `spec.KeyAsValueAttention`."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__(settings, hidden, context)
        self.project = RepeatedKeys(settings, hidden, context)


class RepeatedKeys(nn.Module):
    """Projects to heads [q ... q k ... k], and appends the keys once more as values."""

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__()
        dim = settings.head_dim
        self._sizes = {"query": settings.num_heads * dim, "key": settings.num_kv_heads * dim}
        bias = settings.projections.bias
        self.project = Linear(hidden, self._sizes, context, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """See `layers.attention.qkv.projection`."""
        heads = self.project(x)
        return torch.cat((heads, heads[:, self._sizes["query"] :]), dim=-1)


class KVReuse(Attention):
    """See `spec.KVReuse`: it writes nothing, and its pages are those of the layer that it reads."""

    fuses = False

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__(settings, hidden, context)
        self.key_norm = None
        query = settings.num_heads * settings.head_dim
        self.project = Linear(hidden, {"query": query}, context, bias=settings.projections.bias)

    def _place(self, heads: Tensor, step: ForwardContext, pages: Tensor) -> None:
        if self.query_norm is not None:
            heads.copy_(self.query_norm(heads))
        if self.rope is not None:
            rotate_(heads, step.angles[self.rope])
