"""Prefaulting in the background: memory is committed, and its contents are kept."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from baton.process import standby
from baton_worker.kernels.cpu import prefault
from baton_worker.kernels.cpu.prefault import Populator

MIB = 1 << 20


def reserved(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def begin(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def is_there(memory: mmap.mmap) -> bool:
    return resident(memory) >= len(memory)


def resident(memory: mmap.mmap) -> int:
    """Bytes that the system has handed over, in whole pages."""
    there = (ctypes.c_ubyte * -(-len(memory) // mmap.PAGESIZE))()
    size = ctypes.c_size_t(len(memory))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin(memory)), size, there) == 0
    return sum(page & 1 for page in there) * mmap.PAGESIZE


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


needs_populate = pytest.mark.skipif(kernel() < (5, 14), reason="needs Linux 5.14")


@needs_populate
def test_memory_is_taken_and_what_was_written_stays() -> None:
    memory = reserved(9 * MIB + 5)
    memory[3], memory[-1] = 7, 8
    assert resident(memory) < MIB
    assert prefault.populate(memory)
    assert is_there(memory)
    assert (memory[3], memory[-1]) == (7, 8) and sum(memory[:]) == 15


@needs_populate
def test_a_thread_takes_all_that_it_is_given() -> None:
    populator, some = Populator(delay=0), [reserved(3 * MIB) for _ in range(3)]
    for memory in some:
        populator.add(memory)
    wait_until(lambda: all(map(is_there, some)))


def test_what_nobody_has_any_more_goes_at_once_and_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = SimpleQueue[int]()
    monkeypatch.setattr(prefault, "populate", lambda memory: not asked.put(len(memory)))
    size = MIB + mmap.PAGESIZE
    populator, gone, kept = Populator(delay=0.5), reserved(size), reserved(size + 5)
    held = weakref.ref(gone)
    populator.add(gone)
    populator.add(kept)
    del gone
    assert held() is None
    seen = iter(lambda: asked.get(timeout=30), len(kept))  # Those of other tests may be seen too.
    assert size not in seen


def test_a_system_that_does_not_do_it_is_named_and_asked_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int | None] = []

    def refuse(address: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        asked.append(address.value)
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(prefault, "_C", SimpleNamespace(madvise=refuse))
    populator, some = Populator(delay=0), [reserved(9 * MIB) for _ in range(3)]
    with caplog.at_level(logging.INFO):
        for memory in some:
            populator.add(memory)
        wait_until(populator._waiting.empty)
    assert "memory cannot be taken before it is written (Invalid argument)" in caplog.text
    # The memory of other tests in this process may be asked for too.
    pages = {begin(memory) + offset for memory in some for offset in range(0, 9 * MIB, 4 * MIB)}
    assert pages & {*asked} == {begin(some[0])}


def test_nothing_is_taken_while_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, memory = SimpleQueue[float](), reserved(MIB)
    monkeypatch.setattr(time, "sleep", slept.put)
    Populator(delay=7.0).add(memory)
    while slept.get(timeout=30) != 7.0:  # That of other tests in this process sleeps too.
        pass


@needs_populate
def test_a_standby_takes_nothing_until_it_is_called() -> None:
    memory = reserved(3 * MIB)
    standby.hold()
    try:
        Populator(delay=0).add(memory)
        time.sleep(0.3)
        assert resident(memory) == 0
    finally:
        standby.call()
        standby.wait()
    wait_until(lambda: is_there(memory))
