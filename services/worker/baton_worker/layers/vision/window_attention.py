"""Attention within shifted windows: see `spec.Swin`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import Mlp
from baton_worker.layers.norm import norm

_APART = -100.0
"""Added to scores of patches that a shift has put into one window."""


class WindowLayer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(
        self, swin: spec.Swin, width: int, num_heads: int, context: BuildContext, *, shifted: bool
    ) -> None:
        super().__init__()
        parts = {"up": "mlp.fc1", "down": "mlp.fc2"}
        self.attention_norm = norm(swin.norm, width, "layernorm_before", context)
        self.attention = WindowAttention(swin, width, num_heads, context, shifted=shifted)
        self.ffn_norm = norm(swin.norm, width, "layernorm_after", context)
        ffn = spec.Mlp(int(swin.ratio * width), swin.activation, bias=True)
        self.ffn = Mlp(ffn, width, replace(context, name=lambda role: context.name(parts[role])))

    def forward(self, x: Tensor) -> Tensor:
        """[N, H, W, width] to the same."""
        x = x + self.attention(_rowwise(self.attention_norm, x))
        out: Tensor = x + _rowwise(lambda rows: self.ffn(self.ffn_norm(rows), None), x)
        return out


class WindowAttention(nn.Module):
    """Each patch sees those of its window."""

    def __init__(
        self, swin: spec.Swin, width: int, num_heads: int, context: BuildContext, *, shifted: bool
    ) -> None:
        super().__init__()
        self._window, self._num_heads, self._shifted = swin.window, num_heads, shifted
        here = replace(context, name=lambda part: context.name(f"attention.{part}"))

        def linear(part: str, *, bias: bool) -> Linear:
            return Linear(width, {part: width}, here, bias=bias)

        self.parts = nn.ModuleList(linear(f"{part}_proj", bias=swin.bias) for part in "qkv")
        self.output = linear("o_proj", bias=True)
        table = "relative_position_bias.relative_position_bias_table"
        self.bias = Learned(((2 * swin.window - 1) ** 2, num_heads), table, here)
        self.register_buffer("distances", distances(swin.window), persistent=False)
        self.distances: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[N, H, W, width] to the same; zeros fill up the last windows."""
        size, side = x.shape[1:3], self._window
        shift = side // 2 if self._shifted and min(size) > side else 0
        x = F.pad(x, (0, 0, 0, -size[1] % side, 0, -size[0] % side))
        rows, columns = x.shape[1:3]
        x = torch.roll(x, (-shift, -shift), (1, 2))
        attended = self._within(_windows(x, side), _mask((rows, columns), side, shift).to(x))
        x = _joined_windows(attended, side, (rows, columns))
        return torch.roll(x, (shift, shift), (1, 2))[:, : size[0], : size[1]]

    def _within(self, x: Tensor, mask: Tensor) -> Tensor:
        """[windows, side^2, width] of images with the windows of the mask, one after another."""
        scores = self.bias()[self.distances.to(x.device)].permute(2, 0, 1) + mask[:, None]
        query, key, value = (
            torch.unflatten(_rowwise(part, x), -1, (self._num_heads, -1)).transpose(1, 2)
            for part in self.parts
        )
        bias = scores.repeat(len(x) // len(mask), 1, 1, 1)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return _rowwise(self.output, attended.transpose(1, 2).flatten(2))


def distances(side: int) -> Tensor:
    """int64 [side^2, side^2]: the row of the table of biases for each pair of a window."""
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    rows, columns = places.flatten(1)[:, :, None] - places.flatten(1)[:, None, :] + side - 1
    indices: Tensor = rows * (2 * side - 1) + columns
    return indices


def _mask(size: tuple[int, int], side: int, shift: int) -> Tensor:
    """float32 [windows of an image, side^2, side^2]: `_APART` between what lay apart."""
    if not shift:
        return torch.zeros((size[0] // side) * (size[1] // side), side**2, side**2)
    rows, columns = (
        (torch.arange(n) >= n - side).long() + (torch.arange(n) >= n - shift).long() for n in size
    )
    regions = _windows((rows[:, None] * 3 + columns)[None, :, :, None], side)[..., 0]
    return (regions[:, None] != regions[:, :, None]) * _APART


def _windows(x: Tensor, side: int) -> Tensor:
    """[N, H, W, C] to [windows, side^2, C]."""
    count, rows, columns, width = x.shape
    cells = x.reshape(count, rows // side, side, columns // side, side, width).transpose(2, 3)
    return cells.flatten(0, 2).flatten(1, 2)


def _joined_windows(x: Tensor, side: int, size: tuple[int, int]) -> Tensor:
    """The inverse of `_windows`, for images of this size."""
    cells = x.view(-1, size[0] // side, size[1] // side, side, side, x.shape[-1])
    return cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _rowwise(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """[..., C] through a layer that takes [T, C]."""
    out = layer(x.reshape(-1, x.shape[-1]))
    return out.view(*x.shape[:-1], -1)
