"""Contents and timing of page hash updates."""

from __future__ import annotations

from baton.kv.page_hashes import join_hashes
from baton.protocol import PageHashes
from baton.protocol.token_columns import block_hash, pack
from baton_scheduler.kv.hash_sync import PageHashSync
from baton_scheduler.kv.prefix_cache import PrefixCache

A, B = block_hash(b"", b"a"), block_hash(b"", b"b")


def test_names_are_told_together_and_losses_at_once() -> None:
    told, index = PageHashSync(), PrefixCache()
    assert told.updates(index, 1, 0.0) is None
    index.add(3, A)
    assert told.updates(index, 1, 0.0) == PageHashes(1, join_hashes({3: A}))
    index.add(4, B)
    assert told.updates(index, 1, 0.1) is None, "soon enough with the next ones"
    index.evict(3)
    assert told.updates(index, 1, 0.1) == PageHashes(1, join_hashes({}), pack([3], "I"))
    index.add(3, A)
    assert told.updates(index, 1, 0.2) is None
    assert told.updates(index, 1, 0.3) == PageHashes(1, join_hashes({4: B, 3: A}))
    assert told.updates(index, 1, 9.9) is None


def test_of_a_name_that_came_and_went_nothing_is_told() -> None:
    told, index = PageHashSync(), PrefixCache()
    index.add(3, A)
    index.forget(3)
    assert told.updates(index, 1, 0.0) is None and not index.changed


def test_a_page_of_another_name() -> None:
    told, index = PageHashSync(), PrefixCache()
    index.add(3, A)
    told.updates(index, 1, 0.0)
    index.forget(3)
    index.add(3, B)
    assert told.updates(index, 1, 0.01) == PageHashes(1, join_hashes({}), pack([3], "I"))
    assert told.updates(index, 1, 0.3) == PageHashes(1, join_hashes({3: B}))
    index.forget(3)
    index.add(3, A)
    assert told.updates(index, 1, 0.6) == PageHashes(1, join_hashes({3: A})), "in one message"


def test_what_the_worker_has_said_is_not_said_to_it() -> None:
    told, index = PageHashSync(), PrefixCache()
    index.add(3, A)
    told.assume(index)
    assert told.updates(index, 1, 0.0) is None
    index.evict(3)
    assert told.updates(index, 1, 0.0) == PageHashes(1, join_hashes({}), pack([3], "I"))
