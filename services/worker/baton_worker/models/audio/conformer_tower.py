"""Audio towers whose encoder is a conformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.soft_tokens import SoftTokenEmbedder
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.projector import Projector
from baton_worker.models.audio.conformers import CONFORMERS
from baton_worker.models.vision.media_tower import MediaTower


class ConformerTower(MediaTower):
    """See `spec.ConformerTower`. Clips are [1, bins, frames] and run one by one, so that the
    embeddings of one do not depend on others."""

    def __init__(self, tower: spec.ConformerTower, context: BuildContext) -> None:
        super().__init__()
        # Adapters are of the tokens of a step, which a clip has none of.
        context = replace(context, name=str, adapters=None)
        self.settings, self._context = tower, context
        self.encoder = CONFORMERS[type(tower.encoder)](tower.encoder, context)
        self.projector, self.embedder = Projector(tower.projector, context), None
        self.image_token, self.media_tokens = tower.audio_token, (tower.audio_token,)
        if (soft := tower.soft_tokens) is not None:
            width = tower.encoder.hidden
            self.embedder = SoftTokenEmbedder(
                soft.name, soft.rows, width, tower.hidden, soft.eps, context
            )
            self.media_tokens = (tower.audio_token, soft.end_token)

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """See `MediaTower.refusal`."""
        bins, (chunks, frames, rest) = self.settings.encoder.bins, grid
        fits = tuple(shape) == (chunks, bins, frames) and chunks == 1 and frames > 0 and not rest
        if not fits:
            return f"a clip of shape [1, {bins}, frames] was expected, not {list(shape)}"
        soft = self.settings.soft_tokens
        if soft is not None and self.encoder.num_states(frames) > soft.count:
            return f"a clip of {frames} frames has more than {soft.count} embeddings"
        return ""

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """See `MediaTower.num_tokens`."""
        if (soft := self.settings.soft_tokens) is not None:
            return soft.count + 1
        sizes = self._sizes(self.encoder.num_states(grid[1]))
        return sum(rows * columns for rows, columns in map(self.projector.after, sizes))

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """See `MediaTower.sample_media`: the shortest clip of so many embeddings."""
        bins, frames = self.settings.encoder.bins, 1
        if self.settings.soft_tokens is not None:
            count = self.settings.soft_tokens.count
            while self.encoder.num_states(2 * frames) <= count:
                frames *= 2
            shape = (1, bins, frames)
            return [(shape, (1, frames, 0))] * -(-num_tokens // (count + 1))
        while self.num_tokens((), (1, frames, 0)) < num_tokens:
            frames *= 2
        return [((1, bins, frames), (1, frames, 0))]

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
        """Number of blocks run since construction, for watchdogs."""
        return self.encoder.progress

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 spectrograms to [num_tokens, hidden] each."""
        device, dtype = self._context.device, self._context.dtype
        return [self._embeddings(self.encoder(clip[0].T.to(device, dtype))) for clip in pixels]

    def _embeddings(self, states: Tensor) -> Tensor:
        soft, missing = self.settings.soft_tokens, -len(states) % max(1, self.settings.window)
        if soft is not None and self.embedder is not None:
            rows = [soft.pad_row] * (soft.count - len(states)) + [soft.end_row]
            out: Tensor = self.embedder(states, rows)
            return out
        sizes, padded = self._sizes(len(states)), F.pad(states, (0, 0, 0, missing))
        projected: Tensor = self.projector(padded, sizes)
        return projected

    def _sizes(self, states: int) -> list[Size]:
        """Parts of the projector's input."""
        window = self.settings.window or states
        return [(1, window)] * -(-states // window)
