from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.protocol.token_columns import (
    block_hashes,
    derive_seed,
    pack,
    unpack,
    unpack_floats,
)

ids = st.lists(st.integers(0, 2**31 - 1), max_size=50)


@given(ids)
def test_pack_round_trips(values: list[int]) -> None:
    assert list(unpack(pack(values))) == values


def test_columns_are_little_endian_on_every_machine() -> None:
    assert pack([1, 256]) == b"\x01\0\0\0\0\x01\0\0"
    assert list(unpack_floats(pack([0.5], "f"))) == [0.5]


def test_a_column_of_odd_length_is_refused() -> None:
    with pytest.raises(ValueError):
        unpack(b"\0\0\0")


@given(ids, st.integers(1, 8))
def test_equal_prefixes_have_equal_hashes_and_only_they(values: list[int], size: int) -> None:
    hashes = block_hashes(values, size)
    assert len(hashes) == len(values) // size
    assert block_hashes([*values, 7], size)[: len(hashes)] == hashes
    if hashes:
        changed = [values[0] ^ 1, *values[1:]]
        assert not set(block_hashes(changed, size)) & set(hashes)


def test_chains_of_different_salts_share_nothing() -> None:
    tokens = list(range(64))
    assert not set(block_hashes(tokens, 4, b"a")) & set(block_hashes(tokens, 4, b"b"))


def test_seeds_of_choices_differ_and_the_first_is_the_requests_own() -> None:
    seeds = [derive_seed(42, choice) for choice in range(100)]
    assert seeds[0] == 42
    assert len(set(seeds)) == 100
    assert derive_seed(-1, 0) == 2**64 - 1
