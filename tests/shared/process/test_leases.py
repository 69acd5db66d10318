"""Leases of memory, by name."""

from __future__ import annotations

from baton.process.leases import Leases


def test_one_name_has_one_memory_until_it_has_another_use_for_it() -> None:
    made, freed = list[int](), list[int]()

    def make(size: int) -> int:
        made.append(size)
        return len(made)

    leases = Leases(make, freed.append)
    first, as_left = leases.acquire(b"one", b"key", 10, 7, holder=3)
    assert (first.memory, as_left) == (1, False) and leases.most_pages() == 7
    again, as_left = leases.acquire(b"one", b"key", 10, 7, holder=4)
    assert (again.memory, again.holder, as_left) == (1, 4, True)
    assert leases.find(b"one") == again and leases.find(b"two") is None
    assert leases.acquire(b"two", b"key", 10, 9, holder=4)[1] is False
    assert leases.memories() == [1, 2] and leases.most_pages() == 9
    for key, size in ((b"other", 10), (b"other", 11)):
        assert leases.acquire(b"one", key, size, 7, holder=5)[1] is False
    assert freed == [1, 3] and made == [10, 10, 10, 11]
    leases.end_of(4)
    assert freed == [1, 3, 2] and leases.most_pages() == 7
    leases.end(b"two")
    leases.close()
    assert freed == [1, 3, 2, 4] and leases.memories() == []
