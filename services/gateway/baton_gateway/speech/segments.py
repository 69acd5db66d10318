"""Splits an output with timestamps into segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton.protocol import SpeechInfo

STEP_SECONDS = 0.02
"""Seconds between two timestamps."""


@dataclass(frozen=True, slots=True)
class TimedTokens:
    """The tokens of one segment."""

    start: float
    """Seconds from the beginning of the recording."""
    end: float
    tokens: tuple[int, ...]
    """Including its timestamps."""
    text: tuple[int, ...]
    """Without timestamps."""
    first: int
    """Index of the first of `tokens` in the output."""


def timed_segments(
    tokens: Sequence[int], info: SpeechInfo, start: float, end: float
) -> Iterator[TimedTokens]:
    """Yield the segments of one chunk's output: the tokens between two timestamps, or between one
    and the end.

    Args:
        start: seconds at which the chunk begins.
        end: seconds at which the chunk ends; segments are cut there.
    """
    tokens = tokens[: tokens.index(info.end)] if info.end in tokens else tokens
    first = info.no_timestamps + 1
    text, opening, started_at = list[int](), 0, start

    def segment(until: float, stop: int) -> TimedTokens:
        times = min(started_at, end), min(max(started_at, until), end)
        return TimedTokens(*times, tuple(tokens[opening:stop]), tuple(text), opening)

    for place, token in enumerate(tokens):
        if token < first:
            text.append(token)
            continue
        time = start + (token - first) * STEP_SECONDS
        if text:
            yield segment(time, place + 1)
        text, opening, started_at = [], place, time
    if text:
        yield segment(end, len(tokens))
