"""Texts of equal length are found."""

from __future__ import annotations

import torch

from baton_worker.layers.attention.whole_texts import by_length

CPU = torch.device("cpu")


def test_one_length_needs_no_index() -> None:
    [texts] = by_length([3, 3], CPU)
    assert texts.length == 3 and texts.tokens is None


def test_every_token_is_in_one_group() -> None:
    groups = by_length([2, 3, 2, 1], CPU)
    found = {g.length: g.tokens.tolist() for g in groups if g.tokens is not None}
    assert found == {2: [0, 1, 5, 6], 3: [2, 3, 4], 1: [7]}
