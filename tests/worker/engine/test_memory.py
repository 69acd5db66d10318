"""Page counts from settings and free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import SettingsError
from baton.kv.page_groups import PageGroups
from baton_worker.config import Config
from baton_worker.engine import memory
from baton_worker.engine.memory import (
    PageBudget,
    choose_pages,
    free_bytes,
    free_for_all,
    has_room,
)

MIB = 2**20


def choose(
    max_model_len: int = 1000,
    free: int = 1000 * MIB,
    on_cpu: bool = True,
    windows: tuple[int, ...] = (0,),
    **settings: Any,
) -> PageBudget:
    groups = PageGroups(windows, 10, 100)
    return choose_pages(Config(block_size=10, **settings), MIB, max_model_len, free, on_cpu, groups)


def test_a_share_of_free_memory() -> None:
    assert choose(gpu_memory_utilization=0.25) == PageBudget(250, 1000)


def test_a_bound_in_bytes_holds_on_a_cpu_only() -> None:
    assert choose(max_kv_bytes=120 * MIB).num_pages == 120
    assert choose(max_kv_bytes=120 * MIB, on_cpu=False).num_pages == 900
    assert choose(max_kv_bytes=0).num_pages == 500


def test_a_given_number_wins() -> None:
    assert choose(num_gpu_blocks_override=700, gpu_memory_utilization=0.1).num_pages == 700


def test_never_more_than_the_rows_can_use() -> None:
    assert choose(max_num_seqs=2).num_pages == 200


def test_few_pages_shorten_the_longest_sequence() -> None:
    assert choose(num_gpu_blocks_override=7) == PageBudget(7, 70)


@pytest.mark.row("F12.01")
def test_groups_that_see_a_window_leave_pages_to_those_that_see_all() -> None:
    """A window of 50 takes at most 16 of the 100 blocks of a long sequence: 150 tokens and one."""
    assert choose(windows=(0, 50), max_num_seqs=2).num_pages == 2 * (100 + 16)
    assert choose(windows=(0, 50), num_gpu_blocks_override=60) == PageBudget(60, 440)
    assert choose(windows=(0, 0), num_gpu_blocks_override=60) == PageBudget(60, 300)


@pytest.mark.parametrize(
    "settings", [{"num_gpu_blocks_override": 2000, "max_num_seqs": 256}, {"free": MIB}]
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="Set --num-gpu-blocks-override"):
        choose(max_model_len=100_000, **settings)


@pytest.mark.parametrize(
    ("device", "page_bytes", "free"),
    [("cpu", [1, 1], 300), ("cuda", [7, 7], 600), ("cuda", [3, 1], 666), ("cuda", [0, 0], 600)],
)
def test_ranks_share_the_memory_of_a_host_and_have_a_gpu_each(
    monkeypatch: pytest.MonkeyPatch, device: str, page_bytes: list[int], free: int
) -> None:
    """Each gets as many pages as the one can hold that holds fewest: that with least memory, or the
    stage with most layers."""

    class Two:
        rank, size = 0, 2

    told: list[int] = []
    monkeypatch.setattr(memory, "free_bytes", lambda device, memory: 500)
    monkeypatch.setattr(
        memory, "numbers", lambda ranks, mine, device: told.append(mine) or [mine, 300]
    )
    found = free_for_all(torch.device(device), Two(), page_bytes)  # type: ignore[arg-type]
    assert found == free
    assert told == [500]


def test_a_standby_counts_on_the_memory_of_the_worker_that_it_replaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory.machine, "available_bytes", lambda: 300 * MIB)
    monkeypatch.setattr(memory.standby, "inherited_bytes", lambda: 500 * MIB)
    assert free_bytes(torch.device("cpu")) == 800 * MIB


def test_a_second_copy_of_the_weights_leaves_half_of_the_memory_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "part").mkdir()
    for name in ("one.safetensors", "part/two.safetensors"):
        (tmp_path / name).write_bytes(bytes(1000))
    monkeypatch.setattr(memory.machine, "available_bytes", lambda: 8000)
    assert has_room(tmp_path)
    monkeypatch.setattr(memory.machine, "available_bytes", lambda: 7999)
    assert not has_room(tmp_path)
    assert has_room(tmp_path / "one.safetensors")
    assert has_room(tmp_path, shared=1), "what workers share is there once"
