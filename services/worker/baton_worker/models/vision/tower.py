"""Vision towers: pixels to embeddings in the place of image tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import norm
from baton_worker.layers.patch_embedding import CHANNELS
from baton_worker.layers.vision.arrangement import (
    Arrangement,
    Slices,
    SplitTiles,
    TileRows,
    TilesFirst,
)
from baton_worker.layers.vision.grid import Size, patchify
from baton_worker.layers.vision.hd_tiles import HdTiles
from baton_worker.layers.vision.marks import Ends, Marks
from baton_worker.layers.vision.newlines import Newlines
from baton_worker.layers.vision.overlapping_crops import OverlappingCrops
from baton_worker.layers.vision.patch_embedding import PatchEmbedding
from baton_worker.layers.vision.projector import Codebook, Projector
from baton_worker.layers.vision.sam import SamEncoder
from baton_worker.layers.vision.view_tiles import ViewTiles
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.models.vision.query_stack import Queries, QueryStack
from baton_worker.models.vision.stack import VisionStack
from baton_worker.models.vision.swin_stack import SwinStack
from baton_worker.spec.names import Names


class VisionTower(MediaTower):
    """A stack over patches, and its projector: see `spec.VisionTower`.

    An image is [patches, channels] in the order of `layers.vision.grid`, where its grid counts
    frames, rows and columns; or tiles [3, height, width] or [tiles, 3, height, width].
    """

    def __init__(self, tower: spec.VisionTower, context: BuildContext) -> None:
        super().__init__()
        stack = tower.stack
        # Adapters are of the tokens of a step, which an image has none of.
        context = replace(context, name=Names(stack.tensors.names), adapters=None)
        self.settings, self._patch = tower, stack.patches
        self.front = None if tower.front is None else SamEncoder(tower.front, context)
        self.embedding: PatchEmbedding | Queries = (
            Queries(tower, context)
            if tower.queries
            else PatchEmbedding(stack.patches, stack.hidden, tower.merge, context)
        )
        self.embedding_norm = None
        if stack.embedding_norm is not None:
            self.embedding_norm = norm(
                stack.embedding_norm, stack.hidden, "embedding_norm", context
            )
        self.stack = _stack(tower, context)
        self.projector = Projector(tower.projector, context)
        self.finish = Projector(tower.finish, context)
        self.deepstack = nn.ModuleList(Projector(steps, context) for _, steps in tower.deepstack)
        self.arrangement = self._arrangement(tower, replace(context, name=str))
        self.image_token = tower.image_token
        self.media_tokens = (tower.image_token, *([tower.video.token] if tower.video else []))
        self.tokens_per_second = tower.video.tokens_per_second if tower.video else 0.0
        self.rope_index, self.merge = tower.rope_index, tower.merge
        self.added, self.cross = tower.added, tower.cross
        self._dtype, self._device = context.dtype, context.device

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """Why pixels of this shape cannot be encoded, or nothing."""
        patch = self._patch
        if len(shape) == 2:
            wide, merge = CHANNELS * patch.frames * patch.size**2, self.settings.merge
            sizes = self.arrangement.parts(grid) if min(grid) > 0 else []
            whole = not any(rows % merge or columns % merge for rows, columns in sizes)
            count = sum(rows * columns for rows, columns in sizes)
            most = patch.table if patch.positions == "axes" else max(grid)
            fits = whole and tuple(shape) == (count, wide) and 0 < max(grid[1:]) <= most
            return "" if fits else f"patches of shape {list(shape)} are no grid {list(grid)}"
        tile = (CHANNELS, patch.image, patch.image)
        if tuple(shape[-3:]) == tile and len(shape) in (3, 4) and 0 not in shape:
            whole = grid[1] > 0 or (len(shape) == 4 and shape[0] == grid[0])
            return "" if whole else f"tiles of shape {list(shape)} are not {grid[0]} frames"
        return f"an image of shape {list(tile)} was expected, not {list(shape)}"

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """Number of embeddings of an image."""
        count = sum(self._num_states(size) for size in self._sizes(shape, grid))
        return self.arrangement.num_tokens(count, grid)

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """See `MediaTower.sample_media`: tiles where positions are of one size, else patches."""
        patch = self._patch
        tiles, grid = self.arrangement.sample_tiles()
        shape: tuple[int, ...] = (tiles, CHANNELS, patch.image, patch.image)
        if patch.positions != "exact":
            side = self._sample_side(num_tokens)
            grid = (1, side, side)
            count = sum(rows * columns for rows, columns in self.arrangement.parts(grid))
            shape = (count, CHANNELS * patch.frames * patch.size**2)
        return [(shape, grid)] * -(-num_tokens // self.num_tokens(shape, grid))

    def _sample_side(self, num_tokens: int) -> int:
        """Patches on a side of a square image of so many embeddings, if the encoder was made for
        images that large."""
        merge, patch = self.settings.merge, self._patch
        side = merge * (math.isqrt(num_tokens - 1) + 1)
        made_for = patch.table or patch.image // patch.size
        return min(side, max(made_for // merge, 1) * merge) if made_for else side

    def num_placeholders(self, num_tokens: int) -> int:
        """One, if tokens attend to the embeddings."""
        return 1 if self.cross else num_tokens

    @property
    def bidirectional(self) -> bool:
        """Whether the tokens of an image see one another in both directions."""
        return self.settings.bidirectional

    @property
    def width(self) -> int:
        """Numbers of one embedding, those of `deepstack` included."""
        return self.settings.hidden * (1 + len(self.settings.deepstack))

    @property
    def dtype(self) -> torch.dtype:
        """Of embeddings."""
        return self._dtype

    @property
    def progress(self) -> int:
        """Number of layers run since construction, for watchdogs."""
        return self.stack.progress + (0 if self.front is None else self.front.progress)

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 images to [num_tokens, hidden] each, in the decoder's dtype; with `deepstack`
        [num_tokens, hidden * (1 + its layers)]."""
        shapes = [self._sizes(image.shape, grid) for image, grid in zip(pixels, grids, strict=True)]
        patches = torch.cat([self._patches(image) for image in pixels])
        out = self._embeddings(
            patches, [size for sizes in shapes for size in sizes], self._unpadded(shapes, grids)
        )
        counts = [sum(self._num_states(size) for size in sizes) for sizes in shapes]
        parts = torch.split(out, counts)
        embeddings = [self.arrangement(part, grid) for part, grid in zip(parts, grids, strict=True)]
        if not self.settings.finish:
            return embeddings
        return list(
            torch.split(self.finish(torch.cat(embeddings), []), [len(part) for part in embeddings])
        )

    def _unpadded(self, shapes: Sequence[list[Size]], grids: Sequence[Grid]) -> list[Size] | None:
        """The size of each part without padding; None if there is none."""
        limits = [self.arrangement.unpadded(grid) for grid in grids]
        if not any(limits):
            return None
        pairs = zip(limits, shapes, strict=True)
        return [size for limit, sizes in pairs for size in (sizes if limit is None else limit)]

    def _arrangement(self, tower: spec.VisionTower, context: BuildContext) -> Arrangement:
        settings = tower.arrangement
        if isinstance(settings, spec.Newlines):
            return Newlines(settings, tower.hidden, context)
        if isinstance(settings, spec.TileRows):
            return TileRows(settings, tower.hidden, context)
        if isinstance(settings, spec.OverlappingCrops):
            return OverlappingCrops(settings, context)
        if isinstance(settings, spec.ViewTiles):
            return ViewTiles(settings, tower.hidden, context)
        if isinstance(settings, spec.HdTiles):
            return HdTiles(settings, tower.stack.hidden, context)
        if isinstance(settings, spec.TilesFirst):
            return TilesFirst(settings)
        if isinstance(settings, spec.Slices):
            return Slices(settings)
        if isinstance(settings, spec.SplitTiles):
            return SplitTiles(settings)
        if settings is None:
            return Arrangement()
        codebook = self.projector.steps[-1]
        assert isinstance(codebook, Codebook)
        return Ends(codebook) if isinstance(settings, spec.Ends) else Marks(settings, codebook)

    def _embeddings(
        self, patches: Tensor, sizes: Sequence[Size], unpadded: Sequence[Size] | None
    ) -> Tensor:
        """Patches of images of these sizes to embeddings; `unpadded` as of `VisionStack.run`."""
        first = patches
        if self.front is not None:
            first = self.front(patches, sizes)
            sizes = [self.front.after(size) for size in sizes]
        x = self.embedding(first, sizes, unpadded)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        final, tapped = self.stack.run(x, sizes, unpadded)
        taps = self.settings.taps
        if taps:
            final = torch.cat([tapped[layer] for layer in taps], dim=-1)
        final = self._without_class_token(final, sizes)
        if self.settings.joined:
            final = torch.cat((final, first), dim=-1)
        outputs = [self.projector(final, [self.stack.after(size) for size in sizes])]
        for (layer, _), steps in zip(self.settings.deepstack, self.deepstack, strict=True):
            outputs.append(steps(tapped[layer + 1], sizes))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    def _without_class_token(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        leading = self._patch.leading
        if not (leading and self.settings.drops_class_token):
            return x
        counts = [rows * columns + leading for rows, columns in sizes]
        return torch.cat([part[leading:] for part in torch.split(x, counts)])

    def _patches(self, image: Tensor) -> Tensor:
        """[patches, channels] of an image in the model's dtype."""
        image = image.to(self._device, self._dtype)
        if image.ndim == 2:
            return image
        tiles = image if image.ndim == 4 else image[None]
        return patchify(tiles, self._patch.size, self.settings.merge).flatten(0, 1)

    def _sizes(self, shape: Sequence[int], grid: Grid) -> list[Size]:
        """Rows and columns of what attends to itself alone: each frame, or each tile."""
        if len(shape) == 2:
            return self.arrangement.parts(grid)
        tiles = shape[0] if len(shape) == 4 else 1
        return [(shape[-2] // self._patch.size, shape[-1] // self._patch.size)] * tiles

    def _num_states(self, size: Size) -> int:
        """Embeddings of a frame or tile before newlines."""
        num_leading = self._patch.leading if self.settings.keeps_class_token else 0
        if self.front is not None:
            size = self.front.after(size)
        rows, columns = self.projector.after(self.stack.after(size))
        return rows * columns + num_leading


def _stack(tower: spec.VisionTower, context: BuildContext) -> VisionStack | QueryStack | SwinStack:
    if isinstance(tower.stack, spec.Swin):
        return SwinStack(tower.stack, context)
    return QueryStack(tower, context) if tower.queries else VisionStack(tower, context)
