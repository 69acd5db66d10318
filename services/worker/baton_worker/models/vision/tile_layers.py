"""Layers of an encoder whose tiles see one another, and the vectors that tell tiles apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned, Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import activation
from baton_worker.layers.norm import norm


class TileVectors(nn.Module):
    """Vectors for each shape of an image, tile and position, times tanh of a gate."""

    def __init__(
        self, tower: spec.TiledTower, positions: int, name: str, context: BuildContext
    ) -> None:
        super().__init__()
        self._shape = (tower.most_tiles, positions, tower.hidden)
        width = tower.most_tiles * positions * tower.hidden
        stored = f"{name}.tile_embedding" if positions > 1 else f"{name}.embedding"
        self.table = Table(len(tower.shapes) + 1, width, stored, context)
        self.gate = Learned((1,), f"{name}.gate", context)

    def forward(self, shape: int) -> Tensor:
        """[tiles, positions or 1, hidden] of the shape with this number."""
        number = torch.tensor([shape], device=self.gate().device)
        vectors: Tensor = self.table(number).view(self._shape)
        out: Tensor = self.gate().tanh() * vectors
        return out


class TilePositions(nn.Module):
    """Learned positions within a tile, weighed against `TileVectors` of each position."""

    def __init__(self, tower: spec.TiledTower, name: str, context: BuildContext) -> None:
        super().__init__()
        self.tiles = TileVectors(tower, tower.tile_states, name, context)
        self.within = Learned((tower.tile_states, tower.hidden), f"{name}.embedding", context)

    def forward(self, shape: int) -> Tensor:
        """[tiles, positions, hidden] of the shape with this number."""
        weight = 1 - self.tiles.gate().tanh()
        out: Tensor = weight * self.within() + self.tiles(shape)
        return out


class TileLayer(nn.Module):
    """x + f(norm(x)) for attention and ffn, each times tanh of a gate if `gated`."""

    def __init__(
        self, tower: spec.TiledTower, name: str, context: BuildContext, *, gated: bool
    ) -> None:
        super().__init__()
        hidden, self._heads = tower.hidden, tower.num_heads
        parts = {f"{name}.self_attn.{part}_proj": hidden for part in "qkv"}
        self.project = Linear(hidden, parts, context)
        self.output = Linear(hidden, {f"{name}.self_attn.o_proj": hidden}, context)
        self.up = Linear(hidden, {f"{name}.mlp.fc1": tower.intermediate}, context, bias=True)
        self.down = Linear(tower.intermediate, {f"{name}.mlp.fc2": hidden}, context, bias=True)
        self._activation = activation(tower.activation)
        normed = spec.Norm(tower.eps, "layer", bias=True)
        self.norms = nn.ModuleList(
            norm(normed, hidden, f"{name}.{role}_layernorm", context)
            for role in ("input", "post_attention")
        )
        self.gates: nn.ModuleList | None = None
        if gated:
            self.gates = nn.ModuleList(
                Learned((1,), f"{name}.gate_{role}", context) for role in ("attn", "ffn")
            )

    def forward(self, x: Tensor, shown: Tensor, padding: Tensor) -> Tensor:
        """[T, hidden] of an image; int64 indices of the states that are shown, and of padding."""
        attended = self._attend(self.project(self.norms[0](x)), shown, padding)
        x = x + self._gate(0, self.output(attended))
        output = self.down(self._activation(self.up(self.norms[1](x))))
        return x + self._gate(1, output)

    def _gate(self, half: int, x: Tensor) -> Tensor:
        return x if self.gates is None else self.gates[half]().tanh() * x

    def _attend(self, heads: Tensor, shown: Tensor, padding: Tensor) -> Tensor:
        """[T, 3 * hidden] to [T, hidden]: what is shown sees all, padding sees what is shown."""
        query, key, value = (
            torch.unflatten(part, 1, (self._heads, -1)).transpose(0, 1)
            for part in heads.chunk(3, dim=1)
        )
        out = torch.empty_like(query)
        out[:, shown] = F.scaled_dot_product_attention(query[:, shown], key, value)
        if len(padding):
            out[:, padding] = F.scaled_dot_product_attention(
                query[:, padding], key[:, shown], value[:, shown]
            )
        return out.transpose(0, 1).flatten(1)
