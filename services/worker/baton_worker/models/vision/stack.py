"""The layers of a vision tower over packed images of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.vision.grid import Size, coordinates, inside, windows
from baton_worker.models.encoder import Stack, blocks_of


class VisionStack(Stack):
    """Every patch sees the patches of its own image, or of its window: see `spec.VisionTower`."""

    def __init__(self, tower: spec.VisionTower, context: BuildContext) -> None:
        super().__init__(tower.stack, blocks_of(tower.stack, context), context)
        self._tower, self._leading = tower, tower.stack.patches.leading
        self._wanted = {*tower.taps, *(layer + 1 for layer, _ in tower.deepstack)}

    def run(
        self,
        x: Tensor,
        sizes: Sequence[Size],
        unpadded: Sequence[Size] | None = None,
        together: Sequence[int] | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run packed images.

        Args:
            x: [T, hidden], the patches of images of these `sizes` in the order of
                `layers.vision.grid`, behind the class token of each image if there is one.
            unpadded: rows and columns of the patches of each image, from its top left, that others
                see; None for all.
            together: how many images that follow one another see each other; None for one.

        Returns:
            The final states, and the states after the layers that the tower takes, [T, hidden].
        """
        positions, counts = self._positions(sizes, x.device), self._counts(sizes)
        if together is not None:
            each = iter(counts)
            counts = [sum(islice(each, number)) for number in together]
        order, local = None, counts
        if self._tower.window:
            order, local = self._windows(sizes, x.device)
            x, positions = self._moved(x, order), self._moved(positions.T, order).T
        keys = None if unpadded is None else self._keys(sizes, unpadded).to(x.device)
        full = self.context(positions, counts, x.device, keys)
        near = self.context(positions, local, x.device) if self._tower.window else full
        final, taps = self._run_blocks(x, full, near)
        if order is None:
            return final, taps
        back = order.argsort()
        return self._moved(final, back), {at: self._moved(s, back) for at, s in taps.items()}

    def _run_blocks(
        self, x: Tensor, full: ForwardContext, near: ForwardContext
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """See `run`; `near` is for the layers that see windows."""
        taps = {0: x} if 0 in self._wanted else {}
        no_cache = torch.empty(0)
        for layer, block in enumerate(self.blocks):
            x = block(x, full if layer in self._tower.full_layers else near, no_cache)
            self.progress += 1
            if layer + 1 in self._wanted:
                taps[layer + 1] = x
        return x if self.norm is None else self.norm(x), taps

    def after(self, size: Size) -> Size:
        """Rows and columns of the last states: those of the patches."""
        return size

    def _counts(self, sizes: Sequence[Size]) -> list[int]:
        return [rows * columns + self._leading for rows, columns in sizes]

    def _positions(self, sizes: Sequence[Size], device: torch.device) -> Tensor:
        """int64 [2, T]: row and column of each patch; zero for class tokens, beside which patches
        count from 1."""
        first = self._leading
        none, merge = torch.zeros((2, first), dtype=torch.int64), self._tower.merge
        parts = [part for size in sizes for part in (none, coordinates(size, merge) + first)]
        return torch.cat(parts, dim=1).to(device)

    def _keys(self, sizes: Sequence[Size], unpadded: Sequence[Size]) -> Tensor:
        """bool [T]: whether each token is within what is seen of its image."""
        merge, first = self._tower.merge, torch.ones(self._leading, dtype=torch.bool)
        pairs = zip(sizes, unpadded, strict=True)
        return torch.cat(
            [m for size, size_inside in pairs for m in (first, inside(size, size_inside, merge))]
        )

    def _windows(self, sizes: Sequence[Size], device: torch.device) -> tuple[Tensor, list[int]]:
        """The order of all merged patches, and the patches of each window."""
        merge, first = self._tower.merge, 0
        orders, counts = list[Tensor](), list[int]()
        for size in sizes:
            order, sizes_in_order = windows(size, merge, self._tower.window)
            orders.append(order + first)
            counts += sizes_in_order
            first += len(order)
        return torch.cat(orders).to(device), counts

    def _moved(self, x: Tensor, order: Tensor) -> Tensor:
        """[T, C] with its merged patches in another order."""
        cells = x.reshape(-1, self._tower.merge**2, x.shape[-1])
        return cells.index_select(0, order).flatten(0, 1)
