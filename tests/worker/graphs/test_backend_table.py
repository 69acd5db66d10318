"""The fastest backend of a kind of layer is measured once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.attention import AttentionSpec
from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.graphs import Repeater, backend_table, backend_times
from baton_worker.graphs.backend_table import BackendTable
from baton_worker.graphs.backend_times import Case

CALL = AttentionSpec(4, 2, 8, 1.0, None, torch.float32, torch.device("cpu"))


class Counting:
    """A clock by which each measurement takes a second less than the one before."""

    def __init__(self) -> None:
        self.now = 0

    def seconds(self, step: Callable[[], object], times: int) -> float:
        step()
        self.now += 1
        return 100.0 - self.now


class Captured(GroupedBackend):
    capture_blocker = None


class Broken(ReferenceBackend):
    def plan(self, batch: Any, call: Any) -> Any:
        raise RuntimeError("no kernel image is available")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"decode": Case(2, 1, 9), "prompt": Case(1, 3, 8)}
    monkeypatch.setattr(backend_table, "CASES", cases)
    monkeypatch.setattr(backend_times, "_LAYERS", 1)


@pytest.mark.row("F04.07")
def test_a_table_is_measured_once_and_the_least_times_win(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call, clock = CALL, Counting()
    backends = {"slow": GroupedBackend(), "fast": Captured(), "broken": Broken()}
    table = BackendTable(tmp_path, "a card", 4, Repeater(), clock)
    with caplog.at_level("INFO", "baton_worker.graphs"):
        assert table.fastest(call, backends) == "fast"
    assert "no kernel image" in caplog.text and "slow 99000.00 ms, fast 97000.00 ms" in caplog.text
    assert clock.now == 4
    again = BackendTable(tmp_path, "a card", 4, Repeater(), clock)
    assert again.fastest(call, backends) == "fast" and clock.now == 4
    # Another card, another page size and another kind of layer are measured by themselves.
    BackendTable(tmp_path, "another", 4, Repeater(), clock).fastest(call, backends)
    BackendTable(tmp_path, "a card", 8, Repeater(), clock).fastest(call, backends)
    table.fastest(replace(call, window=2), backends)
    assert clock.now == 16 and len(list(tmp_path.glob("*.json"))) == 3
    assert table.fastest(replace(call, sinks=True), backends) == "slow" and clock.now == 16
    for path in tmp_path.glob("*.json"):
        path.write_text(json.dumps({})[:1])
    assert table.fastest(call, backends) == "fast" and clock.now == 20


def test_a_selector_asks_it_among_kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fastest(call: Any, backends: Any) -> str:
        asked.append(list(backends))
        return list(backends)[-1]

    refuses = "baton_worker.attention.backends.{}.{}.refuses"
    for name in ("triton.TritonBackend", "flashinfer.FlashInferBackend"):
        monkeypatch.setattr(refuses.format(*name.split(".")), lambda self, call: None)
    selector = AttentionSelector()
    selector.fastest = fastest
    call = replace(CALL, device=torch.device("cuda"))
    assert selector.name(call) == "flashinfer" and asked == [["triton", "flashinfer"]]
    assert len([selector.name(CALL), *asked[-1]]) == 2, "a CPU takes the first"
