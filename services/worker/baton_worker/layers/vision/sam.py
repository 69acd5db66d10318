"""SAM's encoder (Kirillov et al. 2023, arXiv:2304.02643) and the convolutions behind it: see
`spec.SamEncoder`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.pooler_head import Dense
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.patch_embedding import PatchEmbedding


class SamEncoder(nn.Module):
    """Patches to states of 4 x 4 of them, part by part."""

    def __init__(self, settings: spec.SamEncoder, context: BuildContext) -> None:
        super().__init__()
        prefix = settings.prefix
        names = {"patches": f"{prefix}.patch_embed.proj", "positions": f"{prefix}.pos_embed"}
        here = replace(context, name=names.__getitem__)
        self.embedding = PatchEmbedding(settings.patches, settings.hidden, 1, here)
        self.blocks = nn.ModuleList(
            _Block(settings, layer, context) for layer in range(settings.num_layers)
        )
        here = replace(context, name=lambda part: f"{prefix}.{part}")
        wide, (middle, outputs) = settings.neck, settings.outputs
        flat = spec.Norm(1e-6, "layer", bias=True)
        self.narrow = _Convolution("neck.0", settings.hidden, wide, 1, here)
        self.first_norm = norm(flat, wide, "neck.1", here)
        self.smooth = _Convolution("neck.2", wide, wide, 3, here)
        self.second_norm = norm(flat, wide, "neck.3", here)
        self.to_half = _Convolution("net_2", wide, middle, 3, here, stride=2)
        self.to_quarter = _Convolution("net_3", middle, outputs, 3, here, stride=2)
        self.progress = 0

    def after(self, size: Size) -> Size:
        """Rows and columns of the states of a part with these of patches."""
        rows, columns = (math.ceil(math.ceil(side / 2) / 2) for side in size)
        return rows, columns

    def forward(self, patches: Tensor, sizes: Sequence[Size]) -> Tensor:
        """[T, 3 * patch * patch] of parts of these sizes, row by row, to [T', outputs]."""
        parts = torch.split(
            self.embedding(patches, sizes), [rows * columns for rows, columns in sizes]
        )
        like = defaultdict[Size, list[int]](list)
        for number, size in enumerate(sizes):
            like[size].append(number)
        states = dict[int, Tensor]()
        for size, numbers in like.items():
            plane = torch.unflatten(torch.stack([parts[number] for number in numbers]), 1, size)
            states |= zip(numbers, self._states(plane), strict=True)
        return torch.cat([states[number] for number in range(len(sizes))])

    def _states(self, x: Tensor) -> Tensor:
        """[B, rows, columns, hidden] to [B, states, outputs]."""
        for block in self.blocks:
            x = block(x)
            self.progress += 1
        x = self.first_norm(self.narrow(x))
        x = self.second_norm(self.smooth(x))
        out: Tensor = self.to_quarter(self.to_half(x))
        return out.flatten(1, 2)


class _Block(nn.Module):
    """x + attention(norm(x)), x + ffn(norm(x))."""

    def __init__(self, settings: spec.SamEncoder, layer: int, context: BuildContext) -> None:
        super().__init__()
        name, hidden = f"{settings.prefix}.blocks.{layer}", settings.hidden
        here = replace(context, name=lambda part: f"{name}.{part}")
        self._window = 0 if layer in settings.full_layers else settings.window
        self.mixer_norm = norm(settings.norm, hidden, "norm1", here)
        side = self._window or settings.patches.image // settings.patches.size
        self.attention = _Attention(settings, side, here)
        self.ffn_norm = norm(settings.norm, hidden, "norm2", here)
        inner = settings.intermediate
        self.up = Dense(spec.Dense(f"{name}.mlp.lin1", hidden, inner, activation="gelu"), context)
        self.down = Dense(spec.Dense(f"{name}.mlp.lin2", inner, hidden), context)

    def forward(self, x: Tensor) -> Tensor:
        """[B, rows, columns, hidden] to the same shape."""
        normed = self.mixer_norm(x)
        if self._window:
            attended = self._merged_windows(self.attention(_windows(normed, self._window)), x.shape)
        else:
            attended = self.attention(normed)
        x = x + attended
        out: Tensor = x + self.down(self.up(self.ffn_norm(x).flatten(0, 2))).view_as(x)
        return out

    def _merged_windows(self, windows: Tensor, shape: torch.Size) -> Tensor:
        """Windows back to [B, rows, columns, hidden], without what fills the last ones up."""
        side = self._window
        down, across = (-(-count // side) for count in shape[1:3])
        cells = windows.view(shape[0], down, across, side, side, -1).transpose(2, 3)
        plane = cells.reshape(shape[0], down * side, across * side, -1)
        return plane[:, : shape[1], : shape[2]]


class _Attention(nn.Module):
    """softmax(scale * Q K^T + rows + columns) V, where a query is multiplied with a learned vector
    for the distance in rows to each key, and with another for that in columns."""

    def __init__(self, settings: spec.SamEncoder, side: int, context: BuildContext) -> None:
        super().__init__()
        hidden, self._heads = settings.hidden, settings.num_heads
        dim = hidden // self._heads
        self._scale = 1 / math.sqrt(dim)
        self.project = Linear(hidden, {"attn.qkv": 3 * hidden}, context, bias=True)
        self.output = Linear(hidden, {"attn.proj": hidden}, context, bias=True)
        self.rows = Learned((2 * side - 1, dim), "attn.rel_pos_h", context)
        self.columns = Learned((2 * side - 1, dim), "attn.rel_pos_w", context)

    def forward(self, x: Tensor) -> Tensor:
        """[B, rows, columns, hidden] to the same shape."""
        size, count = x.shape[1:3], x.shape[1] * x.shape[2]
        heads = self.project(x.flatten(0, 2)).view(len(x), count, 3, self._heads, -1)
        tables = [
            distances(table().to(x.dtype), side)
            for table, side in zip((self.rows, self.columns), size, strict=True)
        ]
        # Head by head: the scores of a whole page are large.
        attended = [self._head(heads[:, :, :, head], tables, size) for head in range(self._heads)]
        out: Tensor = self.output(torch.cat(attended, dim=-1).flatten(0, 1)).view_as(x)
        return out

    def _head(self, parts: Tensor, tables: Sequence[Tensor], size: Sequence[int]) -> Tensor:
        """[B, N, 3, dim] of one head to [B, N, dim]."""
        query, key, value = parts.unbind(2)
        plane = torch.unflatten(query, 1, tuple(size))
        rows = torch.einsum("bhwd,hkd->bhwk", plane, tables[0])
        columns = torch.einsum("bhwd,wkd->bhwk", plane, tables[1])
        bias = (rows[..., None] + columns[..., None, :]).flatten(3).flatten(1, 2)
        return F.scaled_dot_product_attention(query, key, value, bias, scale=self._scale)


class _Convolution(Linear):
    """A convolution of `size` x `size` that keeps sides, or halves them with a `stride` of 2."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        size: int,
        context: BuildContext,
        stride: int = 1,
    ) -> None:
        self._window, self._stride = (inputs, size, size), stride
        super().__init__(math.prod(self._window), {name: outputs}, context)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape."""
        for name, rows in super().weight_targets():
            yield name, rows.view(-1, *self._window)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[B, rows, columns, inputs] to [B, rows / stride, columns / stride, outputs]."""
        side = self._window[1]
        size = [(count - 1) // self._stride + 1 for count in x.shape[1:3]]
        cells = F.unfold(x.permute(0, 3, 1, 2), side, padding=side // 2, stride=self._stride)
        out = super().forward(cells.transpose(1, 2).flatten(0, 1), residual)
        return out.view(len(x), *size, -1)


def distances(table: Tensor, side: int) -> Tensor:
    """The vectors [2 * n - 1, dim] of distances, interpolated to sides of this length, as [side of
    queries, side of keys, dim]."""
    count = 2 * side - 1
    if len(table) != count:
        table = F.interpolate(table.float().T[None], count, mode="linear")[0].T.to(table.dtype)
    place = torch.arange(side, device=table.device)
    return table[place[:, None] - place + side - 1]


def _windows(x: Tensor, side: int) -> Tensor:
    """[B, rows, columns, C] to [windows, side, side, C]; zeros fill up the last ones."""
    below, right = (-count % side for count in x.shape[1:3])
    x = F.pad(x, (0, 0, 0, right, 0, below))
    cells = torch.unflatten(torch.unflatten(x, 2, (-1, side)), 1, (-1, side))
    return cells.transpose(2, 3).flatten(0, 2)
