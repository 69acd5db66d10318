"""Rates of memory of another process and of own memory, with a clock in the place of a device's."""

from __future__ import annotations

import pytest
import torch

from baton_worker.device_keeper import read_rate
from baton_worker.device_keeper.read_rate import ReadRates, read_rates


def test_rates_are_those_of_the_fastest_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = iter([5.0, 2.0, 4.0, 8.0, 1.0, 9.0])

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, last: Event) -> float:
            return next(milliseconds)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(read_rate, "_OWN", 800)
    rates = read_rates(torch.zeros(1605, dtype=torch.uint8))
    assert rates == ReadRates(there=1600 / 2e-3, own=800 / 1e-3)


def test_memory_that_is_nearly_as_fast_is_as_good() -> None:
    assert ReadRates(0.95, 1.0).slow is None and ReadRates(2.0, 1.0).slow is None
    assert "another process" in (ReadRates(0.6, 1.0).slow or "")


def test_without_room_to_compare_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    memory = torch.ones(8, dtype=torch.uint8)
    monkeypatch.setattr(torch, "zeros", full)
    assert read_rates(memory) is None
