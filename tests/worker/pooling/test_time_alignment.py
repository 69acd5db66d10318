"""Alignment against that of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from baton_worker.pooling.time_alignment import median_filter, path_starts, token_places


@pytest.mark.row("A01")
def test_paths_are_those_of_transformers() -> None:
    """Of costs with and without ties, of any shape."""
    random = np.random.default_rng(3)
    for rows, columns in ((1, 1), (1, 9), (5, 1), (4, 4), (9, 30), (30, 9), (17, 61)):
        for costs in (
            random.normal(size=(rows, columns)),
            random.integers(-2, 3, (rows, columns)).astype(np.float64),
            np.zeros((rows, columns)),
        ):
            text, time = _dynamic_time_warping(costs)
            jumps = np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)
            assert path_starts(costs).tolist() == time[jumps].tolist()


def test_medians() -> None:
    x = torch.randn(3, 4, 12, generator=torch.Generator().manual_seed(1))
    for width in (1, 3, 7):
        assert torch.equal(median_filter(x, width), _median_filter(x, width))
    assert median_filter(x[..., :3], 7).shape == (3, 4, 3)


def test_tokens_are_where_heads_attend() -> None:
    """Also where all attend alike to a state, which says nothing."""
    weights = torch.full((2, 3, 12), 0.01)
    for token, (first, end) in enumerate(((0, 3), (3, 8), (8, 11))):
        weights[:, token, first:end] = 0.2
    assert token_places(weights, 3).tolist() == [0, 3, 8]
    assert token_places(weights[:, :1], 3).tolist() == [0]
