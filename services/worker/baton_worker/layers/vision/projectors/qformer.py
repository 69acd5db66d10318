"""BLIP-2's querying transformer: see `spec.QFormer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import Mlp
from baton_worker.layers.norm import norm
from baton_worker.layers.vision.cross_attention import across
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.sized_steps import Sized


class QFormer(Sized):
    """Layers over the queries of all parts; texts that it could read beside them are not."""

    def __init__(self, settings: spec.QFormer, context: BuildContext) -> None:
        super().__init__()
        self._count, self._leading = settings.queries, int(settings.class_token)
        here = replace(context, name=str)
        shape = (1, settings.queries, settings.width)
        self.queries = Learned(shape, settings.queries_name, here)
        self.norm = norm(settings.norm, settings.width, f"{settings.name}.layernorm", here)
        self.layers = nn.ModuleList(
            _QFormerLayer(settings, layer, here) for layer in range(settings.num_layers)
        )

    def after(self, size: Size) -> Size:
        """As many vectors as there are queries."""
        return 1, self._count

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, inputs] of parts of these sizes, each behind its class token if it has one, to [parts
        * queries, width]."""
        counts = [rows * columns + self._leading for rows, columns in sizes]
        out: Tensor = self.norm(self.queries()[0]).repeat(len(sizes), 1)
        for layer in self.layers:
            out = layer(out, x, counts, self._count)
        return out


class _QFormerLayer(nn.Module):
    """BERT's layer (arXiv:1810.04805) whose queries may attend to other states, too."""

    def __init__(self, settings: spec.QFormer, layer: int, context: BuildContext) -> None:
        super().__init__()
        name, width = f"{settings.name}.encoder.layer.{layer}", settings.width
        here = replace(context, name=lambda part: f"{name}.{part}")
        self.attention = _PostNormAttention("attention", width, settings, here)
        self.cross_attention = None
        if layer % settings.frequency == 0:
            inputs = settings.inputs
            self.cross_attention = _PostNormAttention("crossattention", inputs, settings, here)
        parts = {"up": "intermediate_query.dense", "down": "output_query.dense"}
        self.ffn = Mlp(settings.ffn, width, replace(here, name=lambda role: here.name(parts[role])))
        self.ffn_norm = norm(settings.norm, width, "output_query.LayerNorm", here)

    def forward(self, x: Tensor, states: Tensor, counts: Sequence[int], queries: int) -> Tensor:
        """[parts * queries, width] and [T, inputs], `counts` of each part, to [parts * queries,
        width]."""
        x = self.attention(x, x, [queries] * len(counts), queries)
        if self.cross_attention is not None:
            x = self.cross_attention(x, states, counts, queries)
        out: Tensor = self.ffn_norm(self.ffn(x, x))
        return out


class _PostNormAttention(nn.Module):
    """norm(x + attention(x, states, states))."""

    def __init__(
        self, name: str, inputs: int, settings: spec.QFormer, context: BuildContext
    ) -> None:
        super().__init__()
        self._num_heads, width = settings.num_heads, settings.width
        here = replace(context, name=lambda part: context.name(f"{name}.{part}"))

        def linear(inputs: int, part: str) -> Linear:
            return Linear(inputs, {part: width}, here, bias=True)

        self.query = linear(width, "attention.query")
        self.key, self.value = linear(inputs, "attention.key"), linear(inputs, "attention.value")
        self.output = linear(width, "output.dense")
        self.norm = norm(settings.norm, width, "output.LayerNorm", here)

    def forward(self, x: Tensor, states: Tensor, counts: Sequence[int], queries: int) -> Tensor:
        """See `_QFormerLayer.forward`."""
        query = torch.split(self.query(x), queries)
        attended = across(query, self.key(states), self.value(states), counts, self._num_heads)
        out: Tensor = self.norm(self.output(attended, x))
        return out
