"""Steps of a projector over the states of a sound, which follow one another in time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrameStack:
    """The channels of `size` states of a chunk side by side. Fewer at its end are dropped, or
    `padded` with zeros."""

    size: int
    padded: bool = False


@dataclass(frozen=True, slots=True)
class FramePool:
    """The mean of `size` states of a chunk; fewer at its end are dropped."""

    size: int
