"""Audio towers that go through the spectrogram of a sound in windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.audio.window_stems import STEMS, sine_positions
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.projector import Projector
from baton_worker.models.encoder import Stack, blocks_of
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.spec.names import Names


class WindowedTower(MediaTower):
    """See `spec.WindowedTower`. A sound is [windows, bins, frames]; its grid counts windows, and
    the frames of all of them that are no padding. Sounds run one by one, so that the embeddings of
    one do not depend on others."""

    def __init__(self, tower: spec.WindowedTower, context: BuildContext) -> None:
        super().__init__()
        # Adapters are of the tokens of a step, which a sound has none of.
        context = replace(context, name=Names(tower.stack.tensors.names), adapters=None)
        self.settings = tower
        self.stem = STEMS[type(tower.stem)](tower.stem, context)
        self.stack = Stack(tower.stack, blocks_of(tower.stack, context), context)
        self.projector = Projector(tower.projector, context)
        self.image_token, self.media_tokens = tower.audio_token, (tower.audio_token,)
        self.alongside = self.added = tower.alongside
        self._dtype, self._device = context.dtype, context.device

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """See `MediaTower.refusal`."""
        bins, most, (windows, frames, dropped) = self.settings.stem.bins, self._window, grid
        if len(shape) != 3 or shape[1] != bins or 0 in shape:
            return f"a spectrogram of shape [windows, {bins}, frames] was expected, not {shape}"
        fits = windows == shape[0] and (windows - 1) * most < frames <= windows * most
        if not fits or not 0 <= dropped <= self.settings.droppable:
            return f"{shape[0]} windows of {most} frames are no grid {list(grid)}"
        stem = self.settings.stem
        needed = stem.frames(frames) if isinstance(stem, spec.PatchStem) else frames
        least = most if windows > 1 or self.settings.padded else needed
        fits = least <= shape[2] <= most
        return "" if fits else f"windows of {shape[2]} frames are not {least} to {most}"

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """See `MediaTower.num_tokens`."""
        return sum(map(self._made, self._kept(grid))) - grid[2]

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """See `MediaTower.sample_media`: sounds of the windows that see one another."""
        windows, frames = self.settings.together, self.settings.together * self._window
        shape, grid = (windows, self.settings.stem.bins, self._window), (windows, frames, 0)
        return [(shape, grid)] * -(-num_tokens // self.num_tokens(shape, grid))

    @property
    def width(self) -> int:
        """Channels of an embedding."""
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
        return [
            self._embeddings(sound.to(self._device, self._dtype), grid)
            for sound, grid in zip(pixels, grids, strict=True)
        ]

    def _embeddings(self, windows: Tensor, grid: Grid) -> Tensor:
        settings, last = self.settings, grid[1] - (grid[0] - 1) * self._window
        kept, count = self._kept(grid), self.num_tokens((), grid)
        if settings.padded:
            grid, last = (grid[0], grid[0] * self._window, 0), self._window
        counts = self._states(grid)
        stems = zip(self.stem(windows, last), counts, strict=True)
        x, together = self._placed([state[:count] for state, count in stems]), settings.together
        lengths = [sum(counts[n : n + together]) for n in range(0, len(counts), together)]
        places = [torch.arange(count, device=x.device) for count in counts]
        final = self.stack(x, torch.cat(places), lengths, self._seen(counts, last, x.device))
        sizes = self._kept(grid)
        out = torch.split(self.projector(final, sizes), [self._made(size) for size in sizes])
        pairs = zip(out, kept, strict=True)
        return torch.cat([part[: self._made(size)] for part, size in pairs])[:count]

    def _seen(self, counts: Sequence[int], last: int, device: torch.device) -> Tensor | None:
        """bool [T]: the states that others see; None if it is all. A state that is alone in its
        window sees itself."""
        stem = self.settings.stem
        unseen = stem.unseen(last) if isinstance(stem, spec.PatchStem) else 0
        if not unseen or counts[-1] == unseen:
            return None
        return torch.arange(sum(counts), device=device) < sum(counts) - unseen

    def _placed(self, states: list[Tensor]) -> Tensor:
        """The states of all windows, with their positions."""
        if not self.settings.sines:
            return torch.cat(states)
        sines = sine_positions(max(map(len, states)), self.settings.stack.hidden, states[0])
        return torch.cat([state + sines[: len(state)] for state in states])

    def _kept(self, grid: Grid) -> list[Size]:
        """What the projector takes, and makes embeddings of that are kept: a window at a time where
        padding is left out, else all at once."""
        counts = self._states(grid)
        return [(1, count) for count in (counts if self.settings.padded else [sum(counts)])]

    def _made(self, size: Size) -> int:
        return math.prod(self.projector.after(size))

    @property
    def _window(self) -> int:
        return self.settings.window_frames

    def _states(self, grid: Grid) -> list[int]:
        """Number of states of each window."""
        whole, last = [self._window] * (grid[0] - 1), grid[1] - (grid[0] - 1) * self._window
        return [self.settings.stem.after(frames) for frames in (*whole, last)]
