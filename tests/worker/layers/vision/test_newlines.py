"""Rows of tiles."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.newlines import Newlines

SETTINGS = spec.Newlines("newline", 30, 2, ((30, 60), (60, 30), (60, 60)))


def layer(most_tiles: int = 0) -> Newlines:
    settings = spec.Newlines(SETTINGS.name, 30, 2, SETTINGS.offered, most_tiles)
    made = Newlines(settings, 1, BuildContext(torch.device("cpu"), torch.float32))
    made.newline.value.fill_(-1.0)
    return made


def test_tiles_lie_side_by_side_with_a_vector_after_each_row() -> None:
    x = torch.arange(12.0)[:, None]  # The whole image, then two tiles of 2 x 2.
    found = layer()(x, (1, 30, 60))[:, 0].tolist()
    assert found == [0, 1, 2, 3, 4, 5, 8, 9, -1, 6, 7, 10, 11, -1]
    assert layer().num_tokens(0, (1, 30, 60)) == len(found)


def test_padding_is_left_out_and_too_many_are_made_fewer() -> None:
    x = torch.arange(20.0)[:, None]
    found = layer()(x, (1, 60, 31))[:, 0].tolist()
    assert layer().grid((60, 31)) == (4, 4) and layer().kept((60, 31)) == (4, 2)
    assert found[4:7] == [5, 8, -1] and len(found) == layer().num_tokens(0, (1, 60, 31)) == 16

    assert layer(1).kept((60, 60)) == (2, 2) and layer(4).kept((60, 60)) == (4, 4)
    found = layer(1)(torch.ones(20, 1), (1, 60, 60))[:, 0].tolist()
    assert found == [1, 1, 1, 1, 1, 1, -1, 1, 1, -1]


def test_frames_of_a_video_are_halved_with_one_vector_after_the_last() -> None:
    found = layer()(torch.arange(12.0)[:, None], (3, 0, 0))[:, 0].tolist()
    assert found == [1.5, 5.5, 9.5, -1] and layer().num_tokens(0, (3, 0, 0)) == 4
