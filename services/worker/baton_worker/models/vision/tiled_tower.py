"""A vision tower whose states the decoder's cross-attention layers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.norm import norm
from baton_worker.layers.patch_embedding import CHANNELS, PatchProjection, squares
from baton_worker.layers.pooler_head import Dense
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.models.vision.tile_layers import TileLayer, TilePositions, TileVectors

_ROUND = 8
"""States of a tile, with padding, are a multiple of so many."""


class TiledTower(MediaTower):
    """See `spec.TiledTower`. An image is [tiles, 3, image, image], and its grid (1, rows, columns)
    of tiles. Images run one by one, so that the states of one do not depend on others."""

    cross = True

    def __init__(self, tower: spec.TiledTower, context: BuildContext) -> None:
        super().__init__()
        here = replace(context, name=lambda part: f"{tower.prefix}.{part}", adapters=None)
        self.settings, self._context = tower, context
        self.image_token, self.media_tokens = tower.image_token, (tower.image_token,)
        patches = replace(here, name=lambda _: f"{tower.prefix}.patch_embedding")
        self.patches = PatchProjection(
            spec.Patches(tower.image, tower.patch), tower.hidden, patches
        )
        self.class_token = Learned((tower.hidden,), "class_embedding", here)
        self.before = TileVectors(tower, 1, "pre_tile_positional_embedding", here)
        self.after = TileVectors(tower, 1, "post_tile_positional_embedding", here)
        self.positions = TilePositions(tower, "gated_positional_embedding", here)
        normed = spec.Norm(1e-5, "layer", bias=True)
        self.norm_before = norm(normed, tower.hidden, "layernorm_pre", here)
        self.norm_after = norm(normed, tower.hidden, "layernorm_post", here)
        self.layers = nn.ModuleList(
            TileLayer(tower, f"transformer.layers.{layer}", here, gated=False)
            for layer in range(tower.num_layers)
        )
        self.last_layers = nn.ModuleList(
            TileLayer(tower, f"global_transformer.layers.{layer}", here, gated=True)
            for layer in range(tower.num_global_layers)
        )
        self.projector = Dense(tower.projector, replace(context, adapters=None))
        self._progress = 0

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """See `MediaTower.refusal`."""
        side, tiles = self.settings.image, grid[1:]
        if tiles not in self.settings.shapes or grid[0] != 1:
            return f"an image of {list(tiles)} tiles has none of the shapes of this model"
        expected = [tiles[0] * tiles[1], CHANNELS, side, side]
        if list(shape) == expected:
            return ""
        return f"an image of shape {expected} was expected, not {list(shape)}"

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """States of an image: those of its tiles."""
        return shape[0] * self.settings.tile_states

    def num_placeholders(self, num_tokens: int) -> int:
        """One token stands for an image of any size."""
        return 1

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """See `MediaTower.sample_media`: one of most tiles, since they run one by one."""
        rows, columns = max(self.settings.shapes, key=lambda shape: shape[0] * shape[1])
        side = self.settings.image
        return [((rows * columns, CHANNELS, side, side), (1, rows, columns))]

    @property
    def width(self) -> int:
        """Channels of a state."""
        return self.settings.projector.outputs

    @property
    def dtype(self) -> torch.dtype:
        """Of states."""
        return self._context.dtype

    @property
    def progress(self) -> int:
        """Number of layers run since construction, for watchdogs."""
        return self._progress

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 images to their states, [num_tokens, width] each."""
        return [self._image(image, grid) for image, grid in zip(pixels, grids, strict=True)]

    def _image(self, image: Tensor, grid: Grid) -> Tensor:
        tower, count = self.settings, self.settings.tile_states
        shape = tower.shapes.index((grid[1], grid[2])) + 1
        x = self._embedded(image.to(self._context.device, self._context.dtype), shape)
        padded = x.shape[1]
        states = torch.arange(x.shape[0] * padded, device=x.device)
        is_image = (states < len(image) * padded) & (states % padded < count)
        parts = (states[is_image], states[~is_image])
        x, taps = x.flatten(0, 1), list[Tensor]()
        for number, layer in enumerate(self.layers):
            x = self._run(layer, x, parts)
            if number in tower.taps:
                taps.append(x[parts[0]])
        x = self.norm_after(x).unflatten(0, (-1, padded)) + self.after(shape)
        x = x.flatten(0, 1)
        for layer in self.last_layers:
            x = self._run(layer, x, parts)
        # Taps of one channel lie side by side.
        wide = torch.cat((x[parts[0]], torch.stack(taps, dim=-1).flatten(1)), dim=-1)
        out: Tensor = self.projector(wide)
        return out

    def _embedded(self, image: Tensor, shape: int) -> Tensor:
        """[tiles, 3, image, image] to [most_tiles, padded states of a tile, hidden]."""
        tower = self.settings
        x = self.patches(squares(image, tower.patch)).view(len(image), -1, tower.hidden)
        x = F.pad(x, (0, 0, 0, 0, 0, tower.most_tiles - len(image)))
        first = self.class_token().expand(len(x), 1, -1)
        x = torch.cat((first, x + self.before(shape)), dim=1)
        x = self.norm_before(x + self.positions(shape))
        return F.pad(x, (0, 0, 0, -tower.tile_states % _ROUND))

    def _run(self, layer: nn.Module, x: Tensor, parts: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = layer(x, *parts)
        self._progress += 1
        return out
