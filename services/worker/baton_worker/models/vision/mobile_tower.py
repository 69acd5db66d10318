"""The vision tower of Gemma 3n."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.patch_embedding import CHANNELS
from baton_worker.layers.soft_tokens import SoftTokenEmbedder
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.models.vision.mobile_blocks import BLOCKS, ChannelNorm, normed

_LEAST = 32
"""Pixels a side that all strides together reduce to one position."""


class MobileTower(MediaTower):
    """See `spec.MobileTower`. Images are [3, side, side] and run one by one, so that the embeddings
    of one do not depend on others."""

    def __init__(self, tower: spec.MobileTower, context: BuildContext) -> None:
        super().__init__()
        self.settings, self._context = tower, replace(context, adapters=None)
        here = replace(self._context, name=lambda part: f"{tower.prefix}.{part}")
        self.stem = _stem(tower, here)
        self.stages = nn.ModuleList(nn.Sequential(*stage) for stage in _stages(tower, here))
        inputs = sum(tower.stages[stage][-1].width for stage in tower.taps)
        self.fuse = nn.Sequential(
            normed("msfa.ffn.pw_exp", inputs, tower.fused, here, active=True),
            normed("msfa.ffn.pw_proj", tower.fused, tower.width, here),
        )
        self.norm = ChannelNorm("msfa.norm", tower.width, here)
        self.embedder = SoftTokenEmbedder(
            tower.embedder, tower.table, tower.width, tower.hidden, tower.eps, self._context
        )
        self.image_token = tower.image_token
        self.media_tokens = (tower.image_token, tower.end_token)
        self._progress = 0

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """See `MediaTower.refusal`."""
        square = len(shape) == 3 and shape[0] == CHANNELS and shape[1] == shape[2] >= _LEAST
        expected = f"an image of shape [{CHANNELS}, side, side] was expected"
        return "" if square else f"{expected}, not {list(shape)}"

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """The same for all images: places, and the end."""
        return self.settings.side**2 + 1

    @property
    def width(self) -> int:
        """Channels of an embedding."""
        return self.settings.hidden

    @property
    def dtype(self) -> torch.dtype:
        """Of embeddings."""
        return self._context.dtype

    @property
    def progress(self) -> int:
        """Number of stages run since construction, for watchdogs."""
        return self._progress

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 images to [num_tokens, hidden] each."""
        device, dtype = self._context.device, self._context.dtype
        places = (self._places(image.to(device, dtype)[None]) for image in pixels)
        scale, end = math.sqrt(self.settings.width), [self.settings.end_row]
        return [self.embedder(some * scale, end) for some in places]

    def _places(self, x: Tensor) -> Tensor:
        """[1, 3, side, side] to [side * side, width]."""
        x, stages = self.stem(x), dict[int, Tensor]()
        for number, stage in enumerate(self.stages):
            x = stage(x)
            self._progress += 1
            if number in self.settings.taps:
                stages[number] = x
        largest = next(iter(stages.values())).shape[2:]
        alike = [
            part if part.shape[2:] == largest else F.interpolate(part, size=largest)
            for part in stages.values()
        ]
        fused = self.norm(_pooled(self.fuse(torch.cat(alike, dim=1)), self.settings.side))
        places: Tensor = fused[0].flatten(1).T
        return places


def _stem(tower: spec.MobileTower, context: BuildContext) -> nn.Module:
    return normed(
        "conv_stem", CHANNELS, tower.stem, context, active=True, size=3, stride=2, bias=True
    )


def _stages(tower: spec.MobileTower, context: BuildContext) -> Iterator[list[nn.Module]]:
    inputs = tower.stem
    for stage, blocks in enumerate(tower.stages):
        built = list[nn.Module]()
        for number, block in enumerate(blocks):
            name = f"blocks.{stage}.{number}"
            here = replace(context, name=_under(context, name))
            built.append(BLOCKS[type(block)](block, inputs, here))
            inputs = block.width
        yield built


def _under(context: BuildContext, prefix: str) -> Callable[[str], str]:
    return lambda part: context.name(f"{prefix}.{part}")


def _pooled(x: Tensor, side: int) -> Tensor:
    """[1, C, H, W] at `side` x `side`: means of windows, or interpolated if there are no whole
    ones."""
    height, width = x.shape[2:]
    if (height, width) == (side, side):
        return x
    if height % side or width % side:
        return F.interpolate(x, size=(side, side), mode="bilinear")
    return F.avg_pool2d(x, (height // side, width // side))
