"""Where a text has been, and what followed."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.speculative import suffix_index
from baton_worker.speculative.suffix_index import SuffixIndex


def added(index: SuffixIndex, *tokens: int) -> int:
    text = index.begin()
    index.extend(text, np.array(tokens, np.int32))
    return text


def found(index: SuffixIndex, *tokens: int) -> tuple[int, list[list[int]]]:
    length, texts = index.matches(np.array(tokens, np.int32))
    return length, [text.tolist() for text in texts]


@pytest.mark.row("F08.03")
def test_the_longest_match_in_any_text_and_all_that_follows_it() -> None:
    index = SuffixIndex(depth=8, most=9)
    added(index, 1, 2, 3, 4, 5)
    added(index, 9, 2, 3, 6)
    added(index, 1, 2, 3, 7)
    assert found(index, 8, 2, 3) == (2, [[4, 5], [6], [7]])
    assert found(index, 1, 2, 3) == (3, [[4, 5], [7]])
    assert found(index, 3, 8) == found(index, 3) == found(index, 4, 5) == (0, [])
    assert SuffixIndex(8, 9).matches(np.zeros(0, np.int32)) == (0, [])


def test_a_match_has_a_greatest_length() -> None:
    index = SuffixIndex(depth=2, most=9)
    added(index, 1, 2, 3, 4)
    assert found(index, 1, 2, 3) == (2, [[4]])


def test_a_text_grows_and_finds_itself() -> None:
    index, text = SuffixIndex(8, 9), 0
    text = added(index, 5, 6)
    for tokens in ([5, 6, 7], [5, 6, 7, 8, 5, 6]):
        index.extend(text, np.array(tokens, np.int32))
    assert found(index, 5, 6, 7, 8, 5, 6) == (2, [[7, 8, 5, 6]])


def test_the_oldest_texts_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_index, "_SWEPT", 5)
    index = SuffixIndex(8, most=2)
    texts = [added(index, n, n + 1, n + 2) for n in (10, 20, 30, 40)]
    for text in texts:
        index.end(text)
    assert len(index) == 2
    assert found(index, 20, 21) == (0, []) and found(index, 30, 31) == (2, [[32]])
    assert len(index._places) == 4, "places of what was forgotten are dropped"
