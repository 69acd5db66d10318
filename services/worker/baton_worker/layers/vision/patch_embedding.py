"""Patch embedding of images of any size: see `spec.Patches`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned, Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.patch_embedding import CHANNELS
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.grid_positions import KINDS, Positions, buckets_within


class PatchEmbedding(nn.Module):
    """Projected patches with a leading class token and added position embeddings."""

    def __init__(
        self, settings: spec.Patches, hidden: int, merge: int, context: BuildContext
    ) -> None:
        super().__init__()
        self.settings, self._merge = settings, merge
        self.project = None if settings.given else _Projection(settings, hidden, context)
        self.class_token = self.positions = self.norm = None
        if settings.norm is not None:
            self.norm = norm(settings.norm, hidden, "patch_norm", context)
        if settings.class_token:
            axes = {"batched": (1, 1), "class_row": (1,)}.get(settings.stored, ())
            self.class_token = Learned((*axes, hidden), "class_token", context)
        self.registers = None
        if settings.registers:
            self.registers = Learned((settings.registers, hidden), "registers", context)
        if settings.positions != "none":
            self._place = _kind(settings.positions)
            self.positions = _table(settings, hidden, context)

    def forward(
        self, patches: Tensor, sizes: Sequence[Size], unpadded: Sequence[Size] | None = None
    ) -> Tensor:
        """[T, C * frames * patch * patch] of images of these sizes, image after image, to [T (+ R),
        hidden]; class token or registers of each image are before its patches. With `unpadded`, see
        `grid_positions.buckets_within`."""
        if self.settings.channels_last:
            patches = torch.unflatten(patches, 1, (CHANNELS, -1)).transpose(1, 2).flatten(1)
        x: Tensor = patches if self.project is None else self.project(patches)
        if self.norm is not None:
            x = self.norm(x)
        if self.positions is not None:
            pairs = zip(sizes, unpadded or sizes, strict=True)
            x = x + torch.cat([self._positions(size, table) for size, table in pairs])
        first = self._first()
        if first is None:
            return x
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        return torch.cat([part for image in parts for part in (first, image)])

    def _first(self) -> Tensor | None:
        """[leading, hidden]: what stands before the patches of each image."""
        if self.class_token is None:
            return None if self.registers is None else self.registers.value
        first: Tensor = self.class_token().view(1, -1)
        if self.positions is not None:
            first = first + _rows(self.positions)[self.settings.class_row]
        return first.expand(self.settings.class_copies, -1)

    def _positions(self, size: Size, unpadded: Size) -> Tensor:
        """[patches, hidden]; the first row of the table is the class token's."""
        assert self.positions is not None
        table = _rows(self.positions)[self.settings.spare_rows :]
        if self.class_token is not None:
            table = table[:-1] if self.settings.class_row else table[1:]
        if unpadded != size:
            return buckets_within(table, size, unpadded, self._merge)
        return self._place(table, size, self._merge)


def _kind(name: str) -> Positions:
    if name not in KINDS:
        raise ModelError(f"Positions '{name}' of patches are unknown. Known: {', '.join(KINDS)}.")
    return KINDS[name]


def _table(settings: spec.Patches, hidden: int, context: BuildContext) -> Table | Learned:
    side = settings.table or settings.image // settings.size
    shapes: dict[str, tuple[int, ...]] = {
        "batched": (1, settings.count, hidden),
        "grid": (side, side, hidden),
        "axes": (2, side, hidden),
        "batched_grid": (1, side, side, hidden),
    }
    if settings.stored in shapes:
        return Learned(shapes[settings.stored], "positions", context)
    return Table(settings.spare_rows + settings.count, hidden, "positions", context)


def _rows(table: Table | Learned) -> Tensor:
    """[positions, hidden]."""
    if isinstance(table, Learned):
        rows: Tensor = table().flatten(0, -2)
        return rows
    assert table.weight is not None
    return table.weight


class _Projection(Linear):
    """A convolution with disjoint windows, run as a matrix product."""

    def __init__(self, settings: spec.Patches, hidden: int, context: BuildContext) -> None:
        window: tuple[int, ...] = (CHANNELS, settings.size, settings.size)
        if settings.frames > 1:
            window = (CHANNELS, settings.frames, settings.size, settings.size)
        self._window = (math.prod(window),) if settings.flat else window
        pixels = CHANNELS * settings.frames * settings.size**2
        super().__init__(pixels, {"patches": hidden}, context, bias=settings.bias)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape, and the bias if there is one."""
        for name, rows in super().weight_targets():
            yield name, rows.view(-1, *self._window) if rows.ndim == 2 else rows
