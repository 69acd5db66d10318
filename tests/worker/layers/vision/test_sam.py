"""Relative positions of SAM; its encoder is tested with the models that have it."""

from __future__ import annotations

import pytest
import torch

from baton_worker.layers.vision.sam import distances


def test_distances_of_queries_to_keys_and_of_other_sides() -> None:
    table = torch.arange(-2.0, 3.0)[:, None]
    assert distances(table, 3)[..., 0].tolist() == [[0, -1, -2], [1, 0, -1], [2, 1, 0]]
    smaller = distances(table, 2)[..., 0]
    assert smaller.shape == (2, 2) and smaller[0, 0] == 0
    assert smaller[1, 0].item() == pytest.approx(-smaller[0, 1].item()) and smaller[1, 0] > 1
