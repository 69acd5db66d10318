"""Segments of shared memory: sealed, found by their contents, and gone with their last process."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.process import segments
from baton.process.segments import SegmentKeeper, Segments

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd")
SOME, OTHER = memoryview(b"weights " * 1000), memoryview(b"others " * 1000)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run"


@pytest.fixture
def kept(run_dir: Path) -> Iterator[Segments]:
    with SegmentKeeper(run_dir, limit=len(SOME) + 10):
        yield Segments(run_dir)


def read(descriptor: int) -> bytes:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
        os.close(descriptor)
        return bytes(mapped)


def keep(kept: Segments, name: bytes, descriptor: int) -> bool:
    try:
        return kept.keep(name, descriptor)
    finally:
        os.close(descriptor)


def test_what_one_process_keeps_another_takes(kept: Segments) -> None:
    name = segments.digest(SOME)
    assert kept.take(name) is None and kept.held_bytes() == 0
    assert keep(kept, name, segments.make(SOME))
    for _ in range(2):
        descriptor = kept.take(name)
        assert descriptor is not None and read(descriptor) == bytes(SOME)
    assert kept.held_bytes() == len(SOME)
    assert keep(kept, name, segments.make(SOME)), "it is there already"
    assert kept.held_bytes() == len(SOME)
    assert kept.take(segments.digest(OTHER)) is None


def test_what_is_dropped_is_gone_for_the_next_one(kept: Segments) -> None:
    name = segments.digest(SOME)
    assert keep(kept, name, segments.make(SOME)) and kept.held_bytes() == len(SOME)
    assert kept.drop(name) and kept.held_bytes() == 0 and kept.take(name) is None
    assert not kept.drop(name)


def test_nobody_can_change_a_segment() -> None:
    descriptor = segments.make(SOME)
    assert segments.is_sealed(descriptor, len(SOME))
    for change in (
        lambda: os.pwrite(descriptor, b"x", 0),
        lambda: os.ftruncate(descriptor, 5),
        lambda: mmap.mmap(descriptor, 0),
        lambda: fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW),
    ):
        with pytest.raises(OSError):
            change()
    assert read(descriptor) == bytes(SOME)


def test_what_is_not_whole_sealed_or_small_enough_is_not_kept(kept: Segments) -> None:
    name = segments.digest(SOME)
    open_ = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.pwrite(open_, SOME, 0)
    assert not segments.is_sealed(open_, len(SOME))
    file = os.open(__file__, os.O_RDONLY)
    assert not segments.is_sealed(file, os.fstat(file).st_size)
    too_large = memoryview(bytes(len(SOME) + 11))
    for given, refused in (
        (name, open_),
        (name, file),
        (b"short", segments.make(SOME)),
        (segments.digest(too_large), segments.make(too_large)),
    ):
        assert not keep(kept, given, refused)
        assert kept.take(given) is None
    assert kept.held_bytes() == 0
    short = segments.make(SOME[:-1])
    assert not segments.is_sealed(short, len(SOME))
    os.close(short)


def test_without_a_keeper_nothing_is_shared_and_a_killed_one_leaves_nothing(run_dir: Path) -> None:
    kept = Segments(run_dir)
    assert kept.held_bytes() is None
    with SegmentKeeper(run_dir):
        assert keep(kept, segments.digest(SOME), segments.make(SOME))
        held = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if alive(n)]
        assert sum("baton-segment" in name for name in held) == 1
    assert kept.held_bytes() is None
    held = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if alive(n)]
    assert not any("baton-segment" in name for name in held)
    with pytest.raises(OSError):
        kept.take(segments.digest(SOME))
    # One that was killed has left its socket.
    with SegmentKeeper(run_dir):
        assert kept.held_bytes() == 0


def alive(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def test_leased_memory_is_as_the_last_process_of_that_name_left_it(kept: Segments) -> None:
    key, other = segments.digest(SOME), segments.digest(OTHER)
    assert kept.leased_pages() == 0
    descriptor, as_left = kept.lease("decode-1", key, 8192, num_pages=7)
    assert not as_left and read_all(descriptor) == bytes(8192) and kept.leased_pages() == 7
    with pytest.raises(OSError):
        os.ftruncate(descriptor, 100)
    os.pwrite(descriptor, b"left", 4000)
    os.close(descriptor)
    for name, own, size, found in (
        ("decode-1", key, 8192, True),
        ("decode-2", key, 8192, False),
        ("decode-1", other, 8192, False),
        ("decode-1", key, 8192, False),
        ("decode-1", key, 4096, False),
    ):
        descriptor, as_left = kept.lease(name, own, size, num_pages=7)
        assert as_left is found, (name, size)
        assert (b"left" in read_all(descriptor)) is found
        os.close(descriptor)


@pytest.mark.parametrize(
    ("code", "stays"), [(-signal.SIGKILL, True), (-signal.SIGSEGV, False), (70, False)]
)
def test_who_dies_from_inside_may_have_written_anything(
    run_dir: Path, code: int, stays: bool
) -> None:
    key, kept = segments.digest(SOME), Segments(run_dir)
    with SegmentKeeper(run_dir) as keeper:
        os.close(kept.lease("worker", key, 4096, num_pages=1)[0])
        keeper.process_died(os.getpid() + 1, code)
        keeper.process_died(os.getpid(), code)
        descriptor, as_left = kept.lease("worker", key, 4096, num_pages=1)
        assert as_left is stays
        os.close(descriptor)
        keeper.end_lease("worker")
        assert kept.leased_pages() == 0, "it has left for good"


def read_all(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
