"""Pieces of placeholders to tokens."""

from __future__ import annotations

from baton_mm_preprocess.processors.placeholders import token_ids


def test_texts_that_follow_one_another_are_encoded_as_one() -> None:
    assert token_ids(["a", "b", 1, "c"], 9, lambda text: [len(text)]) == [2, 9, 1]
    assert token_ids([2, 1], 9, lambda text: [0]) == [9, 9, 9]
    assert token_ids(["", 1, ""], 9, lambda text: [0]) == [9]
