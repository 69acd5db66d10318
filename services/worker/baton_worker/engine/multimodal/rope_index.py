"""Rules for the positions of sequences with images, where tokens have several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from baton_worker.engine.multimodal.mrope import AXES, AxisPositions, axis_positions
from baton_worker.engine.multimodal.xdrope import grid_positions
from baton_worker.engine.multimodal_input import SequenceMedia
from baton_worker.models.vision.media_tower import MediaTower

Rule = Callable[[Sequence[SequenceMedia], int, MediaTower], AxisPositions]
"""Media of a sequence and the number of axes to positions; raises `ValueError`."""


def mrope(media: Sequence[SequenceMedia], axes: int, tower: MediaTower) -> AxisPositions:
    """See `mrope.axis_positions`."""
    if axes != AXES:
        raise ValueError(f"images in prompts have no positions on {axes} axes here")
    return axis_positions(media, tower.tokens_per_second)


def mrope_separate(media: Sequence[SequenceMedia], axes: int, tower: MediaTower) -> AxisPositions:
    """See `mrope.axis_positions`, with rows and columns of each image counted from 0."""
    if axes != AXES:
        raise ValueError(f"images in prompts have no positions on {axes} axes here")
    return axis_positions(media, tower.tokens_per_second, separate=True)


def mrope_shared(media: Sequence[SequenceMedia], axes: int, tower: MediaTower) -> AxisPositions:
    """See `mrope.axis_positions`, with marks around a video with its sound that have no positions
    of their own."""
    if axes != AXES:
        raise ValueError(f"images in prompts have no positions on {axes} axes here")
    return axis_positions(media, tower.tokens_per_second, shared_marks=True)


def xdrope(media: Sequence[SequenceMedia], axes: int, tower: MediaTower) -> AxisPositions:
    """See `xdrope.grid_positions`."""
    return grid_positions(media, axes, tower.merge)


RULES: dict[str, Rule] = {
    "mrope": mrope,
    "mrope_separate": mrope_separate,
    "mrope_shared": mrope_shared,
    "xdrope": xdrope,
}
"""By `spec.VisionTower.rope_index`."""
