"""Learned queries that attend to the states of an image: see `spec.Resampler`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.vision.cross_attention import across
from baton_worker.layers.vision.grid import Size, coordinates
from baton_worker.layers.vision.grid_positions import interpolation
from baton_worker.layers.vision.sized_steps import Sized

_resized = interpolation("bicubic", corners=False)


class Resampler(Sized):
    """ln_post(attention(ln_q(queries), ln_kv(x) + positions, ln_kv(x))) times a matrix."""

    def __init__(self, settings: spec.Resampler, context: BuildContext) -> None:
        super().__init__()
        self._settings, width, name = settings, settings.width, settings.name
        here = replace(context, name=lambda part: f"{name}.{part}")

        def linear(inputs: int, part: str, *, bias: bool = True) -> Linear:
            return Linear(inputs, {part: width}, here, bias=bias)

        self.queries = Learned((settings.queries, width), "query", here)
        self.places = None
        if settings.stored:
            self.places = Learned((settings.queries, width), "pos_embed", here)
        self.narrow = None
        if settings.inputs != width:
            self.narrow = linear(settings.inputs, "kv_proj", bias=False)
        self.query_norm = norm(settings.norm, width, "ln_q", here)
        self.state_norm = norm(settings.norm, width, "ln_kv", here)
        self.query, self.key = linear(width, "attn.query"), linear(width, "attn.key")
        self.value, self.output = linear(width, "attn.value"), linear(width, "attn.out_proj")
        self.out_norm = norm(settings.norm, width, "ln_post", here)
        self.project = Learned((width, width), "proj", here)

    def after(self, size: Size) -> Size:
        """As many vectors as there are queries."""
        return 1, self._settings.queries

    def forward(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, inputs] of parts of these sizes, row by row, to [parts * queries, width]."""
        x = self.state_norm(x if self.narrow is None else self.narrow(x))
        queries, table = self.query_norm(self.queries()), None
        if self.places is not None:
            table = self.places()
            queries = queries + table
        query = self.query(queries).expand(len(sizes), -1, -1)
        places = torch.cat([_places(table, size, x.shape[1]) for size in sizes]).to(x)
        counts = [rows * columns for rows, columns in sizes]
        heads = self._settings.num_heads
        states = across(query, self.key(x + places), self.value(x), counts, heads)
        out: Tensor = self.out_norm(self.output(states)) @ self.project()
        return out


def _places(table: Tensor | None, size: Size, width: int) -> Tensor:
    """[rows * columns, width] of the keys of a part."""
    return sines(size, width) if table is None else _resized(table, size, 1)


def sines(size: Size, width: int) -> Tensor:
    """float32 [rows * columns, width]: sines, then cosines of the column, and those of the row."""
    powers = 10_000.0 ** -(torch.arange(width // 4) / (width // 4))
    rows, columns = (torch.outer(axis.float(), powers) for axis in coordinates(size, 1))
    return torch.cat((columns.sin(), columns.cos(), rows.sin(), rows.cos()), dim=1)
