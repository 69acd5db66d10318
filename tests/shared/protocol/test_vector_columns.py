"""Round trip of vector columns, and errors for inconsistent ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.protocol import Pooled
from baton.protocol.token_columns import pack
from baton.protocol.vector_columns import join, split

NUMBERS = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda v: pack(v, "f"))


@given(st.dictionaries(st.integers(0, 2**32 - 1), NUMBERS, max_size=6))
def test_there_and_back(vectors: dict[int, bytes]) -> None:
    assert split(join(vectors)) == vectors


def test_none_is_nothing() -> None:
    assert join({}) is None and split(None) == {}


@pytest.mark.parametrize(
    "pooled",
    [
        Pooled(pack([1, 2], "I"), pack([1], "I"), bytes(4)),
        Pooled(pack([1, 1], "I"), pack([1, 1], "I"), bytes(8)),
        Pooled(pack([1], "I"), pack([2], "I"), bytes(4)),
        Pooled(pack([1], "I"), pack([1], "I"), bytes(8)),
        Pooled(b"\1", pack([1], "I"), bytes(4)),
    ],
)
def test_columns_that_disagree(pooled: Pooled) -> None:
    with pytest.raises(ValueError):
        split(pooled)
