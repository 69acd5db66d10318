"""Attention layers that share KV (cross-layer attention, arXiv:2405.12981)."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.rope.rope import rotate_


class KVSharingSource(Attention):
    """Attention that publishes the step's KV, rotated but not yet normed, for KV-sharing layers."""

    fuses = False

    def _turn(self, heads: Tensor, step: ForwardContext) -> None:
        if self.rope is not None:
            num_turned = self.call.num_heads + self.call.num_kv_heads
            rotate_(heads[:, :num_turned], step.angles[self.rope])
        step.shared_kv[:] = [heads[:, self.call.num_heads :].clone()]
        self._norm(heads)


class KVSharingTarget(Attention):
    """Attention that projects queries only and reuses the KV of a `KVSharingSource`. Its own norm
    changes the keys, so it has pages of its own."""

    fuses = False

    def __init__(self, settings: spec.Attention, hidden: int, context: BuildContext) -> None:
        super().__init__(settings, hidden, context)
        query = settings.num_heads * settings.head_dim
        self.project = Linear(hidden, {"query": query}, context, bias=settings.projections.bias)

    def _place(self, heads: Tensor, step: ForwardContext, pages: Tensor) -> None:
        if self.rope is not None:
            rotate_(heads, step.angles[self.rope])
        whole = torch.cat((heads, *step.shared_kv), dim=1)
        self._norm(whole)
        heads.copy_(whole[:, : self.call.num_heads])
        self._put(whole, step, pages)
