"""Aria's queries, as many as the size of an image needs: see `spec.LearnedQueries`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.vision.cross_attention import across
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.sized_steps import Sized


class LearnedQueries(Sized):
    """linear(attention(queries, x, x)), all three normed and projected twice."""

    def __init__(self, settings: spec.LearnedQueries, context: BuildContext) -> None:
        super().__init__()
        self._settings, width = settings, settings.width
        above = replace(context, name=lambda part: f"{settings.name}.{part}")
        here = replace(context, name=lambda part: f"{settings.name}.cross_attn.{part}")

        def linear(part: str, *, bias: bool = True) -> Linear:
            return Linear(width, {part: width}, here, bias=bias)

        self.queries = Learned((max(n for _, n in settings.counts), width), "query", above)
        self.query_norm = norm(settings.norm, width, "layer_norm", here)
        self.state_norm = norm(settings.norm, width, "layer_norm_kv", here)
        self.to_query = linear("q_proj", bias=False)
        self.to_key, self.to_value = linear("k_proj", bias=False), linear("v_proj", bias=False)
        self.query = linear("multihead_attn.query")
        self.key, self.value = linear("multihead_attn.key"), linear("multihead_attn.value")
        self.output, self.linear = linear("multihead_attn.out_proj"), linear("linear")

    def after(self, size: Size) -> Size:
        """As many vectors as the smallest square with room for a part of this size has queries."""
        counts = self._settings.counts
        return 1, next((n for patches, n in counts if patches >= max(size) ** 2), counts[-1][1])

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, width] of parts of these sizes, row by row, to [all queries, width]."""
        query = self.query(self.to_query(self.query_norm(self.queries())))
        queries = [query[: self.after(size)[1]] for size in sizes]
        x = self.state_norm(x)
        key, value = self.key(self.to_key(x)), self.value(self.to_value(x))
        counts = [rows * columns for rows, columns in sizes]
        attended = across(queries, key, value, counts, self._settings.num_heads)
        out: Tensor = self.linear(self.output(attended))
        return out
