"""Page hashes on the wire and in the worker's table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from baton.kv.page_hashes import (
    MOST_HELD,
    PageHashTable,
    join_hashes,
    split_hashes,
)
from baton.protocol import HeldPages, PageHashes
from baton.protocol.token_columns import block_hash, pack

ONE, TWO = block_hash(b"", b"one"), block_hash(b"", b"two")
NAMES = {7: ONE, 0: ONE + b"\x01", 3: TWO, 4: b"\0" * 16}


def test_what_is_joined_splits() -> None:
    assert split_hashes(join_hashes(NAMES)) == NAMES and split_hashes(join_hashes({})) == {}


@pytest.mark.parametrize(
    "held",
    [
        HeldPages(pack([1, 2], "I"), ONE + b"\0"),
        HeldPages(pack([1], "I"), ONE),
        HeldPages(pack([1, 1], "I"), ONE + b"\0" + TWO + b"\0"),
        HeldPages(pack([1, 2], "I"), (ONE + b"\0") * 2),
        HeldPages(b"\0", b""),
    ],
)
def test_columns_that_contradict_each_other(held: HeldPages) -> None:
    with pytest.raises(ValueError, match=r"name|bytes"):
        split_hashes(held)


def test_a_worker_keeps_what_it_is_told() -> None:
    held = PageHashTable()
    assert held.held() is None
    held.update(PageHashes(1, join_hashes({1: ONE, 2: TWO})))
    held.update(PageHashes(1, join_hashes({3: ONE}), pack([1, 9], "I")))
    assert held.held() == join_hashes({2: TWO, 3: ONE})


def test_the_latest_names_fit_into_a_hello() -> None:
    held = PageHashTable()
    held.update(
        PageHashes(1, join_hashes({n: block_hash(b"", pack([n])) for n in range(MOST_HELD + 3)}))
    )
    names = held.held()
    assert names is not None and list(split_hashes(names)) == list(range(3, MOST_HELD + 3))


def test_nothing_is_kept_of_a_message_that_makes_no_sense() -> None:
    held = PageHashTable()
    held.update(PageHashes(1, join_hashes({1: ONE})))
    with pytest.raises(ValueError, match="one name for each page"):
        held.update(PageHashes(1, HeldPages(pack([2], "I"), ONE)))
    assert held.held() is None


class Store:
    """Hashes in a dictionary."""

    def __init__(self) -> None:
        self.names: dict[int, bytes] = {}

    def hashes(self) -> dict[int, bytes]:
        return dict(self.names)

    def forget(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.names.pop(page, None)

    def put(self, names: Mapping[int, bytes]) -> None:
        self.names.update(names)

    def clear(self) -> None:
        self.names.clear()


def test_the_next_worker_knows_what_the_last_was_told() -> None:
    store = Store()
    held = PageHashTable(store)
    held.update(PageHashes(1, join_hashes({1: ONE, 2: TWO})))
    held.update(PageHashes(1, join_hashes({3: ONE}), pack([1, 9], "I")))
    assert store.names == {2: TWO, 3: ONE}
    assert PageHashTable(store).held() == held.held()
    with pytest.raises(ValueError, match="one name for each page"):
        held.update(PageHashes(1, HeldPages(pack([2], "I"), ONE)))
    assert store.names == {} and PageHashTable(store).held() is None
