"""The stages of Swin over images of one size: see `spec.Swin`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.window_attention import WindowLayer


class SwinStack(nn.Module):
    """Patches to the states of the last stage."""

    def __init__(self, swin: spec.Swin, context: BuildContext) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_blocks(swin, context))
        self._halvings, self.progress = len(swin.depths) - 1, 0

    def run(
        self, x: Tensor, sizes: Sequence[Size], unpadded: Sequence[Size] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """[T, hidden] of the patches of images to their last states, image after image. Each image
        runs alone: its numbers do not depend on others. No part of one may be padding."""
        assert unpadded is None
        parts = torch.split(x, [rows * columns for rows, columns in sizes])
        outputs = [self._image(part, size) for part, size in zip(parts, sizes, strict=True)]
        return torch.cat(outputs), {}

    def after(self, size: Size) -> Size:
        """Rows and columns of the last states."""
        for _ in range(self._halvings):
            size = -(-size[0] // 2), -(-size[1] // 2)
        return size

    def _image(self, x: Tensor, size: Size) -> Tensor:
        x = x.view(1, *size, -1)
        for block in self.blocks:
            x = block(x)
            self.progress += 1
        return x.flatten(0, 2)


class PatchMerging(nn.Module):
    """2 x 2 patches become one of twice the width; zeros fill up the last ones."""

    def __init__(self, width: int, context: BuildContext) -> None:
        super().__init__()
        self.norm = norm(spec.Norm(1e-5, "layer", bias=True), 4 * width, "norm", context)
        self.reduce = Linear(4 * width, {"reduction": 2 * width}, context, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[1, H, W, width] to [1, H / 2, W / 2, 2 * width], rounded up."""
        rows, columns = x.shape[1:3]
        x = F.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
        cells = [x[0, row::2, column::2] for column in range(2) for row in range(2)]
        merged = torch.cat(cells, dim=-1)
        out: Tensor = self.reduce(self.norm(merged.flatten(0, 1)))
        return out.view(1, *merged.shape[:2], -1)


def _blocks(swin: spec.Swin, context: BuildContext) -> Iterator[nn.Module]:
    """The layers, and what merges patches between stages."""
    for stage, (depth, num_heads) in enumerate(zip(swin.depths, swin.num_heads, strict=True)):
        name, width = f"{swin.name}.encoder.layers.{stage}", swin.hidden << stage
        for layer in range(depth):
            here = _under(context, f"{name}.blocks.{layer}")
            yield WindowLayer(swin, width, num_heads, here, shifted=layer % 2 == 1)
        if stage < len(swin.depths) - 1:
            yield PatchMerging(width, _under(context, f"{name}.downsample"))


def _under(context: BuildContext, prefix: str) -> BuildContext:
    return replace(context, name=lambda part: f"{prefix}.{part}")
