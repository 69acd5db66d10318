"""Rows that take the place of those of tokens."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.layers.media_embeddings import MediaEmbeddings

SEEN = MediaEmbeddings(torch.tensor([1, 3]), torch.tensor([[1.0], [3.0]]))


def test_only_their_places_change() -> None:
    x = torch.zeros(4, 1)
    assert SEEN.into(x).flatten().tolist() == [0.0, 1.0, 0.0, 3.0] and not x.any()


def test_what_is_behind_the_first_width_is_added_behind_layers() -> None:
    deep = MediaEmbeddings(torch.tensor([1, 3]), torch.tensor([[1.0, 5.0], [3.0, 7.0]]))
    x = torch.ones(4, 1)
    assert deep.into(x).flatten().tolist() == [1.0, 1.0, 1.0, 3.0]
    assert deep.onto(x, 0).flatten().tolist() == [1.0, 6.0, 1.0, 8.0]
    assert deep.onto(x, 1) is x and SEEN.onto(x, 0) is x


def test_a_part_of_the_tokens_has_its_part_of_them() -> None:
    part = SEEN.take(np.array([True, False, True, True]))
    assert part.into(torch.zeros(3, 1)).flatten().tolist() == [0.0, 0.0, 3.0]
