"""The attention layer: projections, head norms, rotation, cache, backend, output."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker.attention import AttentionCall, choose
from baton_worker.layers.layer import Site
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import RmsNorm
from baton_worker.layers.rope import rotate_
from baton_worker.layers.step import Step
from baton_worker.models import spec


class Attention(nn.Module):
    """Grouped-query attention over pages.

    Query, key and value come out of one product as heads [q ... q k ... k v ... v], so the
    rotation of q and k is one operation in place and key and value go to the cache in one scatter.
    """

    def __init__(self, settings: spec.Attention, hidden: int, site: Site) -> None:
        super().__init__()
        self.rope = settings.rope
        self.call = AttentionCall(
            settings.num_heads,
            settings.num_kv_heads,
            settings.head_dim,
            settings.scale,
            settings.window,
            site.dtype,
            site.device,
        )
        self.backend = choose(self.call)
        query = settings.num_heads * settings.head_dim
        kv = settings.num_kv_heads * settings.head_dim
        parts = {"query": query, "key": kv, "value": kv}
        self.project = Linear(hidden, parts, site, bias=settings.bias)
        self.query_norm = self.key_norm = None
        if settings.qk_norm is not None:
            self.query_norm = RmsNorm(settings.qk_norm, settings.head_dim, "query_norm", site)
            self.key_norm = RmsNorm(settings.qk_norm, settings.head_dim, "key_norm", site)
        self.output = Linear(query, {"output": hidden}, site, bias=settings.output_bias)

    def forward(self, x: Tensor, step: Step, pages: Tensor, residual: Tensor | None) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`."""
        num_heads, num_kv_heads = self.call.num_heads, self.call.num_kv_heads
        heads = self.project(x).view(x.shape[0], -1, self.call.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
            query.copy_(self.query_norm(query))
            key.copy_(self.key_norm(key))
        rotate_(heads[:, : num_heads + num_kv_heads], step.angles[self.rope])
        cache = pages.view(-1, 2 * num_kv_heads, self.call.head_dim)
        cache.index_copy_(0, step.slots, heads[:, num_heads:])
        attended = self.backend.forward(step.plans[self.call], heads[:, :num_heads], pages)
        out: Tensor = self.output(attended, residual)
        return out
