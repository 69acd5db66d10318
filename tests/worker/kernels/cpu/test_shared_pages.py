"""Packed weights in shared memory: the same bytes at the same addresses, once on a host."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from baton.process import segments, standby
from baton.process.segments import SegmentKeeper, Segments
from baton_worker.kernels.cpu import shared_pages
from baton_worker.kernels.cpu.huge_pages import HugePageArena
from baton_worker.kernels.cpu.shared_pages import HUGE, SharedPages

MIB = 1 << 20


def supported() -> bool:
    """Whether this system collapses shared memory into huge pages."""
    if sys.platform != "linux":
        return False
    arena = HugePageArena(2 * HUGE)
    tensor = arena.empty((HUGE,), torch.uint8)
    arena.close_all()
    (block,) = arena.full_blocks()
    descriptor = segments.make(memoryview((ctypes.c_char * HUGE).from_address(tensor.data_ptr())))
    try:
        shared_pages._check(descriptor, block, collapse=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


pytestmark = pytest.mark.skipif(not supported(), reason="Linux 6.1 or later")


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Segments]:
    (tmp_path / "run").mkdir(mode=0o700)
    with SegmentKeeper(tmp_path / "run"):
        yield Segments(tmp_path / "run")


def filled(arena: HugePageArena, seed: int = 0) -> list[Tensor]:
    """Tensors of several chunks, and one that is larger than any."""
    drawn = torch.Generator().manual_seed(seed)
    tensors = []
    for size in (MIB, 3 * MIB, 9 * MIB, 2 * MIB, 100_001, 3 * MIB):
        tensor = arena.empty((size,), torch.uint8)
        tensor.copy_(torch.randint(0, 256, (size,), dtype=torch.uint8, generator=drawn))
        tensors.append(tensor)
    return tensors


def is_shared(tensor: Tensor) -> bool:
    """Whether a tensor lies in a segment, by the maps of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split(" ", 1)[0].split("-"))
        if first <= tensor.data_ptr() < last:
            return "baton-segment" in line and line.split()[1] == "r--s"
    raise AssertionError("it is nowhere")


def share(kept: Segments, arena: HugePageArena, delay: float = 0.0) -> None:
    sharing = SharedPages(kept, arena.full_blocks, delay)
    arena.close_all()
    sharing.finish()


@pytest.fixture
def spare() -> Iterator[None]:
    standby.hold()
    yield
    standby.call()


@pytest.mark.usefixtures("spare")
def test_two_workers_have_the_same_pages_and_neither_sees_a_difference(
    kept: Segments, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = HugePageArena(4 * MIB), HugePageArena(4 * MIB)
    tensors, others = filled(one), filled(two)
    expected, addresses = [t.clone() for t in tensors], [t.data_ptr() for t in tensors]
    with caplog.at_level(logging.INFO):
        share(kept, one)
        held = kept.held_bytes()
        share(kept, two)
    assert kept.held_bytes() == held == pytest.approx(18 * MIB, abs=MIB), "the second one adds none"
    assert [t.data_ptr() for t in tensors] == addresses
    for mine, theirs, original in zip(tensors, others, expected, strict=True):
        assert is_shared(mine) and is_shared(theirs)
        assert torch.equal(mine, original) and torch.equal(theirs, original)
    assert (
        caplog.messages == ["18 of 18 MiB of packed weights are in memory that workers share"] * 2
    )


@pytest.mark.usefixtures("spare")
def test_weights_of_another_model_are_not_mixed_up(kept: Segments) -> None:
    one, two = HugePageArena(4 * MIB), HugePageArena(4 * MIB)
    tensors, others = filled(one), filled(two, seed=1)
    expected = [t.clone() for t in others]
    share(kept, one)
    share(kept, two)
    assert all(map(torch.equal, others, expected)) and all(map(is_shared, tensors + others))


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("fault", ["contents", "size", "seals"])
def test_a_segment_that_is_not_what_its_name_says_is_not_used(
    kept: Segments, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    arena = HugePageArena(4 * MIB)
    tensors = filled(arena)
    expected = [t.clone() for t in tensors]

    def take(name: bytes) -> int:
        contents = memoryview(bytes(4 * MIB if fault != "size" else 5))
        if fault != "seals":
            return segments.make(contents)
        unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        os.pwrite(unsealed, contents, 0)
        return unsealed

    lying = SimpleNamespace(take=take, keep=kept.keep)
    with caplog.at_level(logging.INFO):
        share(lying, arena)  # type: ignore[arg-type]
    assert not any(map(is_shared, tensors)) and all(map(torch.equal, tensors, expected))
    assert caplog.messages[0].startswith("0 of 18 MiB") and "a kept segment" in caplog.messages[0]


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("why", ["no huge pages", "no room", "no keeper"])
def test_weights_that_cannot_be_shared_stay_private_and_one_line_says_why(
    kept: Segments, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if why == "no huge pages":
        monkeypatch.setattr(shared_pages, "_MADV_COLLAPSE", 12345)
    elif why == "no room":
        monkeypatch.setattr(kept, "keep", lambda name, descriptor: False)
    else:
        kept = Segments(Path("/nowhere"))
    arena = HugePageArena(4 * MIB)
    tensors = filled(arena)
    expected = [t.clone() for t in tensors]
    with caplog.at_level(logging.INFO):
        share(kept, arena)
    assert not any(map(is_shared, tensors)) and all(map(torch.equal, tensors, expected))
    said = {
        "no huge pages": "Invalid argument",
        "no room": "as it may",
        "no keeper": "No such file",
    }
    assert said[why] in caplog.messages[0] and caplog.messages[0].startswith("0 of 18 MiB")


@pytest.mark.usefixtures("spare")
def test_a_standby_shares_while_it_packs(kept: Segments) -> None:
    arena = HugePageArena(4 * MIB)
    sharing = SharedPages(kept, arena.full_blocks)
    arena.on_written(sharing.while_standby)
    tensors = filled(arena)
    assert is_shared(tensors[2]), "the large one, when the next was asked for"
    assert not is_shared(tensors[-1]), "its chunk has room"
    standby.call()
    filled(arena, seed=2)
    assert not is_shared(tensors[-1]), "an active worker does so later"


def test_an_active_worker_shares_from_a_thread_after_its_start(kept: Segments) -> None:
    arena = HugePageArena(4 * MIB)
    tensors = filled(arena)
    expected = [t.clone() for t in tensors]
    share(kept, arena, delay=0.3)
    assert not any(map(is_shared, tensors))
    wait_until(lambda: all(map(is_shared, tensors)))
    assert all(map(torch.equal, tensors, expected))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_replaced_weights_are_kept_no_more_and_stay_as_they_are(kept: Segments) -> None:
    arena = HugePageArena(4 * MIB)
    tensors, wanted = filled(arena), [tensor.clone() for tensor in filled(HugePageArena())]
    arena.close_all()
    sharing = SharedPages(kept, arena.full_blocks)
    sharing._share()
    assert kept.held_bytes() and is_shared(tensors[0])
    sharing.replaced()
    assert kept.held_bytes() == 0
    assert all(torch.equal(a, b) for a, b in zip(tensors, wanted, strict=True))
    more = filled(arena, seed=2)
    arena.close_all()
    sharing._share()
    assert kept.held_bytes() == 0 and len(more) == len(tensors)
