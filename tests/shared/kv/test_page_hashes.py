"""Names of pages on the wire, and what a worker keeps of them."""

from __future__ import annotations

import pytest

from baton.kv.page_hashes import (
    MOST_HELD,
    Held,
    join,
    split,
)
from baton.protocol import Kept, PageNames
from baton.protocol.token_columns import block_hash, pack

ONE, TWO = block_hash(b"", b"one"), block_hash(b"", b"two")
NAMES = {7: ONE, 0: ONE + b"\x01", 3: TWO, 4: b"\0" * 16}


def test_what_is_joined_splits() -> None:
    assert split(join(NAMES)) == NAMES and split(join({})) == {}


@pytest.mark.parametrize(
    "held",
    [
        PageNames(pack([1, 2], "I"), ONE + b"\0"),
        PageNames(pack([1], "I"), ONE),
        PageNames(pack([1, 1], "I"), ONE + b"\0" + TWO + b"\0"),
        PageNames(pack([1, 2], "I"), (ONE + b"\0") * 2),
        PageNames(b"\0", b""),
    ],
)
def test_columns_that_contradict_each_other(held: PageNames) -> None:
    with pytest.raises(ValueError, match=r"name|bytes"):
        split(held)


def test_a_worker_keeps_what_it_is_told() -> None:
    held = Held()
    assert held.names() is None
    held.take(Kept(1, join({1: ONE, 2: TWO})))
    held.take(Kept(1, join({3: ONE}), pack([1, 9], "I")))
    assert held.names() == join({2: TWO, 3: ONE})


def test_the_latest_names_fit_into_a_hello() -> None:
    held = Held()
    held.take(Kept(1, join({n: block_hash(b"", pack([n])) for n in range(MOST_HELD + 3)})))
    names = held.names()
    assert names is not None and list(split(names)) == list(range(3, MOST_HELD + 3))


def test_nothing_is_kept_of_a_message_that_makes_no_sense() -> None:
    held = Held()
    held.take(Kept(1, join({1: ONE})))
    with pytest.raises(ValueError, match="one name for each page"):
        held.take(Kept(1, PageNames(pack([2], "I"), ONE)))
    assert held.names() is None
