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
    """The mean of `size` states of a chunk; fewer at its end are dropped, or `padded` with
    zeros."""

    size: int
    padded: bool = False


@dataclass(frozen=True, slots=True)
class PadCode:
    """One vector of `width` channels is added to all: row `row` of a table of `rows` codes, through
    a projection without a bias (Fun-Audio-Chat, whose processor gives each frame of a sound this
    code). Names are the checkpoint's."""

    table: str
    projection: str
    rows: int
    row: int
    width: int
