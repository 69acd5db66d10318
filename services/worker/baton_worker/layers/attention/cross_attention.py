"""Attention of tokens to the states of an encoder."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.attention import AttentionSpec
from baton_worker.kernels.kv_pages import put
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm


class CrossAttention(nn.Module):
    """See `spec.CrossAttention`. No `Mixer`: its plans are those of `ForwardContext.cross`.

    Pages hold floats whatever those of tokens hold: they are written once, and read by every token.
    """

    def __init__(self, settings: spec.CrossAttention, hidden: int, context: BuildContext) -> None:
        super().__init__()
        # An adapter is of the tokens of a step, and states are none of these.
        context = replace(context, adapters=None)
        self.call = AttentionSpec(
            settings.num_heads,
            settings.num_kv_heads,
            settings.head_dim,
            settings.scale,
            None,
            context.dtype,
            context.device,
            layout=context.layout,
        )
        self.backend = context.attention.select(self.call)
        query, kv = (settings.head_dim * n for n in (settings.num_heads, settings.num_kv_heads))
        self.alignment_heads = settings.alignment_heads
        projections, parts = settings.projections, {"cross_key": kv, "cross_value": kv}
        self.project = Linear(hidden, {"cross_query": query}, context, bias=projections.bias)
        self.keep = Linear(
            settings.states, parts, context, bias=projections.bias, unbiased=projections.unbiased
        )
        self.output = Linear(query, {"cross_output": hidden}, context, bias=projections.output_bias)
        self.query_norm = self.key_norm = None
        if settings.qk_norm is not None:
            self.query_norm, self.key_norm = (
                norm(settings.qk_norm.norm, settings.head_dim, role, context)
                for role in ("cross_query_norm", "cross_key_norm")
            )

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Tensor, residual: Tensor | None
    ) -> Tensor:
        """x [R, hidden] of the tokens that see states, and this layer's pages of states, to [R,
        hidden], plus `residual`."""
        cross = step.cross
        assert cross is not None and len(cross.places) == len(x), "a token sees no states"
        for slots, states in cross.writes:
            self._write(states, slots, pages)
        query = self.project(x).view(len(x), self.call.num_heads, self.call.head_dim)
        if self.query_norm is not None:
            query = self.query_norm(query)
        if cross.weights is not None and self.alignment_heads:
            cross.weights.add(query, pages, self.alignment_heads, self.call.scale)
        attended = self.backend.forward(cross.plans[self.call], query, pages)
        out: Tensor = self.output(attended, residual)
        return out

    def _write(self, states: Tensor, slots: Tensor, pages: Tensor) -> None:
        heads = self.keep(states).view(len(states), -1, self.call.head_dim)
        if self.key_norm is not None:
            keys = heads[:, : self.call.num_kv_heads]
            keys.copy_(self.key_norm(keys))
        put(heads, slots, pages, None)
