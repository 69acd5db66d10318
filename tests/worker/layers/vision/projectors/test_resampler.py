"""Queries over the states of an image."""

from __future__ import annotations

import math

import torch

from baton_worker.layers.vision.projectors.resampler import sines


def test_places_are_sines_of_the_column_and_of_the_row() -> None:
    found = sines((2, 3), 8)
    assert found.shape == (6, 8)
    row, column = 1, 2
    waves = [column, column / 100, row, row / 100]
    expected = [math.sin(w) for w in waves[:2]] + [math.cos(w) for w in waves[:2]]
    expected += [math.sin(w) for w in waves[2:]] + [math.cos(w) for w in waves[2:]]
    torch.testing.assert_close(found[5], torch.tensor(expected))
