"""Interleaves the sound of a clip with its frames by time (TMRoPE, Qwen2.5-Omni, arXiv:2503.20215;
Qwen3-Omni, arXiv:2509.17765).

    frames   0 s      1 s      2 s          in chunks of 2 s:  0 s 1 s | a a a a | 2 s | a a
    sound    a  a  a  a  a  a               by time:           0 s | a a | 1 s | a a | 2 s | a a
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from baton_mm_preprocess.processors.families import single
from baton_mm_preprocess.processors.placeholders import Encode
from baton_mm_preprocess.processors.processed_image import Grid

Times = npt.NDArray[np.float64]
_FIELDS = ("audio_start_token_id", "audio_end_token_id")


@dataclass(frozen=True, slots=True)
class SoundTimes:
    """A family's rule for interleaving a clip and its sound."""

    marks: tuple[str, str]
    """Tokens before and after both, if the config names none."""
    per_second: float
    """Default number of time positions per second; an embedding of sound takes one."""
    chunk_seconds: float = 0.0
    """Default number of seconds per chunk, whose frames precede its sound; 0: each group of frames
    is placed at its own time."""

    def read(self, config: Mapping[str, Any], video: int, audio: int, encode: Encode) -> ClipSound:
        """The placeholder of a checkpoint with these tokens of clips and sounds. Raises
        `ModelError`."""
        start, end = (
            config[field] if isinstance(config.get(field), int) else single(mark, encode)
            for field, mark in zip(_FIELDS, self.marks, strict=True)
        )
        rate = float(config.get("position_id_per_seconds") or self.per_second)
        seconds = self.chunk_seconds and float(
            config.get("seconds_per_chunk") or self.chunk_seconds
        )
        return ClipSound((start, end), (video, audio), rate, int(rate * seconds))


@dataclass(frozen=True, slots=True)
class ClipSound:
    """Placeholder of a clip with its sound."""

    marks: tuple[int, int]
    """Tokens before and after both."""
    places: tuple[int, int]
    """Tokens whose embeddings are replaced by those of the clip and of its sound."""
    per_second: float
    chunk: int
    """Time positions per chunk; 0 for no chunks."""

    def tokens(
        self, grid: Grid, num_tokens: int, num_heard: int, seconds_per_grid: float
    ) -> list[int]:
        """Token ids.

        Args:
            num_tokens: embeddings of the clip.
            num_heard: embeddings of its sound.
        """
        frames = np.arange(grid[0]) * seconds_per_grid * self.per_second
        times: list[Times] = [
            np.repeat(frames, num_tokens // grid[0]),
            np.arange(num_heard, dtype=np.float64),
        ]
        if self.chunk:
            times = [np.array(list(_chunks(one, self.chunk)), np.float64) for one in times]
        kinds = np.repeat((0, 1), (num_tokens, num_heard))
        order = np.lexsort((kinds, np.concatenate(times)))
        return [self.marks[0], *np.array(self.places)[kinds[order]].tolist(), self.marks[1]]


def _chunks(times: Times, size: int) -> Iterator[int]:
    """Number of the chunk of each token. As in the published processors, a token that begins later
    than the next chunk ends is nevertheless the first of that chunk."""
    number = 0
    for time in times.tolist():
        number += time >= (number + 1) * size
        yield number
