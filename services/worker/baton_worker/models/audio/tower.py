"""Audio towers: spectrograms to embeddings in the place of audio tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.audio.chunk_rotation import rotated
from baton_worker.layers.audio.frame_embedding import FrameEmbedding
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.projector import Projector
from baton_worker.models.encoder import Stack, blocks_of
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.spec.names import Names

_STATES = 8192
"""States of chunks that run together, about: what they take in memory does not grow with the
length of a sound."""


class Chunk(NamedTuple):
    """One chunk of a sound."""

    frames: Tensor
    """[mels, frames]."""
    num_states: int
    number: int
    """In its sound."""


class AudioTower(MediaTower):
    """A stack over chunks of frames, and its projector: see `spec.AudioTower`.

    A sound is [chunks, mels, frames]; its grid counts chunks, and the frames of all chunks that
    are not padding.
    """

    def __init__(self, tower: spec.AudioTower, context: BuildContext) -> None:
        super().__init__()
        # Adapters are of the tokens of a step, which a sound has none of.
        context = replace(context, name=Names(tower.stack.tensors.names), adapters=None)
        self.settings, self._spec = tower, tower.stack
        self.embedding = FrameEmbedding(tower.stack, context)
        self.stack = Stack(tower.stack, blocks_of(tower.stack, context), context)
        self.projector = Projector(tower.projector, context)
        self.finish = Projector(tower.finish, context)
        tokens = (tower.audio_token, tower.previous_token)
        self.image_token, self.cross = tower.audio_token, tower.cross
        self.media_tokens = tuple(token for token in tokens if token is not None)
        self._dtype, self._device = context.dtype, context.device

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """Why features of this shape cannot be encoded, or nothing."""
        mels, most = self._spec.stem[0].inputs, self.settings.chunk_frames
        if len(shape) != 3 or shape[1] != mels or 0 in shape:
            return f"a spectrogram of shape [chunks, {mels}, frames] was expected, not {shape}"
        chunks, frames, none = grid
        if none or chunks != shape[0] or not (chunks - 1) * most < frames <= chunks * most:
            return f"{shape[0]} chunks of {most} frames are no grid {list(grid)}"
        needed = most if chunks > 1 else self._needed(frames)
        allowed = needed if self.settings.exact else most
        fits = needed <= shape[2] <= allowed
        return "" if fits else f"chunks of {shape[2]} frames are not {needed} to {allowed}"

    def _needed(self, frames: int) -> int:
        """Frames of a chunk that is alone."""
        if self.settings.exact:
            return frames
        return min(self.settings.chunk_frames, self._spec.before(self._spec.after(frames)))

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """Number of embeddings of a sound."""
        return sum(map(self._embeddings_of, self._states(grid)))

    def num_placeholders(self, num_tokens: int) -> int:
        """One, if tokens attend to the embeddings."""
        return 1 if self.cross else num_tokens

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """See `MediaTower.sample_media`: sounds of one whole chunk."""
        frames = self.settings.chunk_frames
        shape, grid = (1, self._spec.stem[0].inputs, frames), (1, frames, 0)
        return [(shape, grid)] * -(-num_tokens // self.num_tokens(shape, grid))

    @property
    def width(self) -> int:
        """Numbers of one embedding."""
        return self.settings.hidden

    @property
    def dtype(self) -> torch.dtype:
        """Of embeddings."""
        return self._dtype

    @property
    def progress(self) -> int:
        """Number of layers run since construction, for watchdogs."""
        return self.stack.progress

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 sounds to [num_tokens, hidden] each, in the decoder's dtype."""
        chunks = [
            Chunk(frames, count, number)
            for sound, grid in zip(pixels, grids, strict=True)
            for number, (frames, count) in enumerate(zip(sound, self._states(grid), strict=True))
        ]
        out = torch.cat([self._encoded(some) for some in _together(chunks)])
        sizes = [self.num_tokens(sound.shape, g) for sound, g in zip(pixels, grids, strict=True)]
        return list(torch.split(out, sizes))

    def _encoded(self, chunks: Sequence[Chunk]) -> Tensor:
        """Chunks to embeddings."""
        states = [
            self.embedding(chunk.frames.to(self._device, self._dtype), chunk.num_states)
            for chunk in chunks
        ]
        counts = [chunk.num_states for chunk in chunks]
        positions = torch.cat([torch.arange(count) for count in counts]).to(self._device)
        final = self.stack(torch.cat(states), positions, counts)
        x = self.projector(final, [(1, count) for count in counts])
        if self.settings.rotation is not None:
            x = self._rotated(x, chunks, self.settings.rotation)
        embeddings: Tensor = self.finish(x, [])
        return embeddings

    def _rotated(self, x: Tensor, chunks: Sequence[Chunk], rotation: spec.ChunkRotation) -> Tensor:
        whole = self._embeddings_of(self._spec.after(self.settings.chunk_frames))
        parts = torch.split(x, [self._embeddings_of(chunk.num_states) for chunk in chunks])
        return torch.cat(
            [
                rotated(part, rotation, chunk.number, whole)
                for part, chunk in zip(parts, chunks, strict=True)
            ]
        )

    def _states(self, grid: Grid) -> list[int]:
        """Number of states of each chunk of a sound."""
        chunks, frames, _ = grid
        whole, last = [self.settings.chunk_frames] * (chunks - 1), frames
        last -= sum(whole)
        return [self._spec.after(count) for count in (*whole, last)]

    def _embeddings_of(self, num_states: int) -> int:
        return math.prod(self.projector.after((1, num_states)))


def _together(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks that run together."""
    some, total = list[Chunk](), 0
    for chunk in chunks:
        if some and total + chunk.num_states > _STATES:
            yield some
            some, total = [], 0
        some.append(chunk)
        total += chunk.num_states
    yield some
