"""Pages of a mapped file that were read are released, and no other pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton_worker.checkpoint.formats.mmap import opened, release

SIZE = 8 << 20
needs_maps = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a file.safetensors"
    numbers = torch.arange(SIZE // 8)
    save_file({"first": numbers, "second": numbers + 1}, path)
    return path


def in_memory(path: Path) -> int:
    """Bytes of the maps of a file that are in this process's memory."""
    maps = Path("/proc/self/smaps").read_text()
    found = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps)
    return sum(map(int, found)) * 1024


@needs_maps
def test_what_was_read_goes_and_can_be_read_again(shard: Path) -> None:
    with opened(shard) as file:
        first, second = file.get_tensor("first"), file.get_tensor("second")
        sums = int(first.sum()), int(second.sum())
        assert in_memory(shard) > 2 * SIZE
        release(first)
        assert SIZE * 0.9 < in_memory(shard) < SIZE * 1.1
        release(second[::2])
        assert in_memory(shard) < SIZE * 0.1
        assert (int(first.sum()), int(second.sum())) == sums


def test_the_heap_is_left_alone(shard: Path) -> None:
    with opened(shard) as file:
        ours = file.get_tensor("first") + 1
        release(ours)
        release(torch.empty(0))
        assert torch.equal(ours, file.get_tensor("second"))


@needs_maps
def test_a_closed_file_is_not_known_any_more(shard: Path) -> None:
    with opened(shard) as file:
        first = file.get_tensor("first")
    first += 1  # private to the map: it would be lost
    release(first)
    assert int(first[0]) == 1


def test_a_file_without_tensors(tmp_path: Path) -> None:
    save_file({}, tmp_path / "x.safetensors")
    with opened(tmp_path / "x.safetensors") as file:
        assert not list(file.keys())
