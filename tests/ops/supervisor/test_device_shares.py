from __future__ import annotations

import pytest

from baton.process import nvidia
from baton_ops.supervisor.device_shares import flags


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(nvidia, "count", lambda: 4)


def dealt(variables: dict[str, str], count: int) -> list[str]:
    chosen = [dict(zip(f[::2], f[1::2], strict=True)) for f in _all(variables, count)]
    return [flag.get("--gpu", "") for flag in chosen]


def _all(variables: dict[str, str], count: int) -> list[list[str]]:
    return [flags(variables, count, place) for place in range(count)]


def test_each_worker_has_gpus_of_its_own_side_by_side() -> None:
    assert dealt({}, 3) == ["0", "1", "2"]
    assert dealt({"BATON_WORKER_TENSOR_PARALLEL_SIZE": "2"}, 2) == ["0,1", "2,3"]
    assert dealt({"CUDA_VISIBLE_DEVICES": "5,7"}, 3) == ["0", "1", "0"]


@pytest.mark.parametrize(
    "variables",
    [
        {"BATON_WORKER_GPU": "3"},
        {"BATON_WORKER_DEVICE": "cpu"},
        {"CUDA_VISIBLE_DEVICES": "5"},
        {"BATON_WORKER_TENSOR_PARALLEL_SIZE": "8"},
    ],
)
def test_what_is_given_or_leaves_no_choice_is_not_dealt(variables: dict[str, str]) -> None:
    assert dealt(variables, 2) == ["", ""]


def test_memory_is_shared_by_those_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags({}, 4, 1) == ["--threads", "2", "--gpu", "1"]
    assert flags({}, 8, 5) == ["--threads", "1", "--gpu-memory-utilization", "0.45", "--gpu", "1"]
    monkeypatch.setattr(nvidia, "count", lambda: 0)
    assert flags({}, 2, 1) == ["--threads", "4", "--gpu-memory-utilization", "0.25"]
    assert flags({}, 1, None) == []
