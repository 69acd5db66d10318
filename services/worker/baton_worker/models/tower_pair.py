"""Two encoders of one model: of images, and of audio."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.protocol.media import Grid, is_sound
from baton_worker.models.vision.media_tower import MediaTower


class TowerPair(MediaTower):
    """See `spec.TowerPair`. The grid of an item selects its tower. Embeddings of sounds are as wide
    as those of images, with zeros for the layers that images alone reach."""

    def __init__(self, vision: MediaTower, audio: MediaTower) -> None:
        super().__init__()
        self.vision, self.audio = vision, audio
        self.image_token = vision.image_token
        self.media_tokens = (*vision.media_tokens, *audio.media_tokens)
        self.tokens_per_second, self.rope_index = vision.tokens_per_second, vision.rope_index
        self.merge, self.added, self.cross = vision.merge, vision.added, vision.cross

    def tokens_of(self, grid: Grid) -> tuple[int, ...]:
        """See `MediaTower.tokens_of`."""
        return self._of(grid).media_tokens

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """See `MediaTower.refusal`."""
        return self._of(grid).refusal(shape, grid)

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """See `MediaTower.num_tokens`."""
        return self._of(grid).num_tokens(shape, grid)

    def num_placeholders(self, num_tokens: int) -> int:
        """See `MediaTower.num_placeholders`."""
        return self.vision.num_placeholders(num_tokens)

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """Items of both kinds: what a step holds at most is one of these or the other."""
        return [*self.vision.sample_media(num_tokens), *self.audio.sample_media(num_tokens)]

    @property
    def bidirectional(self) -> bool:
        """See `MediaTower.bidirectional`."""
        return self.vision.bidirectional

    @property
    def width(self) -> int:
        """Numbers of one embedding."""
        return self.vision.width

    @property
    def dtype(self) -> torch.dtype:
        """Of embeddings."""
        return self.vision.dtype

    @property
    def progress(self) -> int:
        """Number of layers run since construction, for watchdogs."""
        return self.vision.progress + self.audio.progress

    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """See `MediaTower.encode_media`."""
        embeddings = dict[int, Tensor]()
        for tower in (self.vision, self.audio):
            mine = [number for number, grid in enumerate(grids) if self._of(grid) is tower]
            if mine:
                encoded = tower.encode_media([pixels[n] for n in mine], [grids[n] for n in mine])
                embeddings |= zip(mine, encoded, strict=True)
        missing = self.width - self.audio.width
        return [
            F.pad(embeddings[number], (0, missing))
            if is_sound(grid) and missing
            else embeddings[number]
            for number, grid in enumerate(grids)
        ]

    def _of(self, grid: Grid) -> MediaTower:
        return self.audio if is_sound(grid) else self.vision
