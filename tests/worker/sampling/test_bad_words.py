"""Bad words against a walk over every word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_worker.sampling.bad_words import BadWords

IDS = st.integers(0, 3)
WORDS = st.lists(st.lists(IDS, min_size=1, max_size=5).map(tuple), min_size=1, max_size=8)


@pytest.mark.row("F09.15")
@given(words=WORDS, log=st.lists(IDS, max_size=8))
def test_equals_definition(words: list[tuple[int, ...]], log: list[int]) -> None:
    expected = {
        word[-1] for word in words if list(word[:-1]) == log[len(log) - len(word) + 1 :]
        and len(word) - 1 <= len(log)
    }  # fmt: skip
    found = BadWords.of(tuple(words)).after(np.array(log, np.int32))
    assert set(found.tolist()) == expected
