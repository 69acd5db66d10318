"""Rows that take the place of those of tokens."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.layers.media_embeddings import MediaEmbeddings

SEEN = MediaEmbeddings(torch.tensor([1, 3]), torch.tensor([[1.0], [3.0]]))


def test_only_their_places_change() -> None:
    x = torch.zeros(4, 1)
    assert SEEN.into(x).flatten().tolist() == [0.0, 1.0, 0.0, 3.0] and not x.any()


def test_a_part_of_the_tokens_has_its_part_of_them() -> None:
    part = SEEN.take(np.array([True, False, True, True]))
    assert part.into(torch.zeros(3, 1)).flatten().tolist() == [0.0, 0.0, 3.0]
