"""Attention pooling of hidden states to one vector: see `spec.AttentionPool`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import Mlp
from baton_worker.layers.norm import norm


class AttentionPool(nn.Module):
    """x + ffn(norm(x)), where x is the attention output of one learned query over the states."""

    def __init__(self, settings: spec.AttentionPool, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._num_heads = settings.num_heads
        self.probe = Learned((1, 1, hidden), "probe", context)
        self.project = _Input(hidden, context)
        self.output = Linear(hidden, {"pool_output": hidden}, context, bias=True)
        self.norm = norm(settings.norm, hidden, "pool_norm", context)
        self.ffn = Mlp(settings.ffn, hidden, context)

    def forward(self, states: Tensor) -> Tensor:
        """[R, N, hidden] to [R, hidden]."""
        probe, _, _ = self._heads(self.probe())
        _, keys, values = self._heads(states)
        query = probe.expand(states.shape[0], -1, -1, -1)
        attended = F.scaled_dot_product_attention(query, keys, values)
        x: Tensor = self.output(attended.flatten(1))
        out: Tensor = self.ffn(self.norm(x), x)
        return out

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[R, N, hidden] to query, key and value, [R, heads, N, dim] each."""
        projected: Tensor = self.project(x.flatten(0, 1))
        heads = projected.view(*x.shape[:2], 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = torch.unbind(heads)
        return query, key, value


class _Input(Linear):
    """Fused QKV with the names of `torch.nn.MultiheadAttention`: one weight, one bias."""

    def __init__(self, hidden: int, context: BuildContext) -> None:
        super().__init__(hidden, {"pool_input": 3 * hidden}, context, bias=True)
        self._source = context.name("pool_input")

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """in_proj_weight and in_proj_bias."""
        for name, rows in super().weight_targets():
            yield f"{self._source}_{name.rpartition('.')[2]}", rows
