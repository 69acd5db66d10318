"""Placeholder tokens of clips in prompts, as in transformers' processors.

Pieces are as those of `processors.placeholders`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from baton_mm_preprocess.processors.placeholders import Piece
from baton_mm_preprocess.processors.processed_image import Grid
from baton_mm_preprocess.video.processed_clip import ClipTimes

ClipPlaceholder: TypeAlias = Callable[[Any, Grid, int, ClipTimes], Iterable[Piece]]
"""(processor, grid, number of embeddings, times of the frames) -> pieces."""


def plain(processor: Any, grid: Grid, num_tokens: int, times: ClipTimes) -> list[Piece]:
    """Video tokens only."""
    return [num_tokens]


def qwen3(processor: Any, grid: Grid, num_tokens: int, times: ClipTimes) -> Iterator[Piece]:
    """The middle of each group of frames in seconds, then its tokens between marks."""
    group = processor.sampling.group
    seconds = [*times.frames, *times.frames[-1:] * (-len(times.frames) % group)]
    for first in range(0, len(seconds), group):
        middle = (seconds[first] + seconds[first + group - 1]) / 2
        yield f"<{middle:.1f} seconds><|vision_start|>"
        yield num_tokens // grid[0]
        yield "<|vision_end|>"


def glm4v(processor: Any, grid: Grid, num_tokens: int, times: ClipTimes) -> Iterator[Piece]:
    """The tokens of each group of frames between marks, and its first frame in whole seconds."""
    for frame in range(grid[0]):
        yield "<|begin_of_image|>"
        yield num_tokens // grid[0]
        yield f"<|end_of_image|>{int(times.frames[frame * processor.sampling.group])}"


def kimi_k25(processor: Any, grid: Grid, num_tokens: int, times: ClipTimes) -> Iterator[Piece]:
    """The start time of each chunk of frames, then its tokens between marks."""
    firsts = times.frames[:: processor.sampling.group]
    for seconds in firsts:
        clock = time.strftime("%H:%M:%S", time.gmtime(seconds))
        yield f"{clock}.{int(seconds % 1 * 1000):03d}<|media_begin|>video<|media_content|>"
        yield num_tokens // len(firsts)
        yield "<|media_end|>"


def internvl(processor: Any, grid: Grid, num_tokens: int, times: ClipTimes) -> Iterator[Piece]:
    """Numbered images."""
    for frame in range(grid[0]):
        yield f"{chr(10) if frame else ''}Frame{frame + 1}: <img>"
        yield processor.tokens_per_frame
        yield "</img>"


def smolvlm(processor: Any, grid: Grid, num_tokens: int, times: ClipTimes) -> Iterator[Piece]:
    """The number of frames in words, the duration, and images with their minute and second."""
    whole = int(times.duration)
    length = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    yield "You are provided the following series of "
    yield f"{_in_words(grid[0])} frames from a {length} [H:MM:SS] video.\n"
    around = "<fake_token_around_image>"
    for seconds in times.frames:
        yield f"\nFrame from {int(seconds // 60):02d}:{int(seconds % 60):02d}:"
        yield f"{around}<global-img>"
        yield processor.tokens_per_frame
        yield around
    yield "\n\n"


_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def _in_words(number: int) -> str:
    """A number below a thousand in English."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_ONES[hundreds]} hundred" + (f" and {_in_words(rest)}" if rest else "")
