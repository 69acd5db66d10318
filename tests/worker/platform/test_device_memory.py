"""Counters of a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baton_worker.platform.device_memory import device_memory


def test_a_gpu_gives_back_what_freed_tensors_left_before_it_says_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def said(name: str, answer: Any = None) -> Callable[..., Any]:
        return lambda *_: calls.append(name) or answer

    monkeypatch.setattr(torch.cuda, "synchronize", said("wait"))
    monkeypatch.setattr(torch.cuda, "empty_cache", said("give back"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", said("ask", (70, 80)))
    monkeypatch.setattr(torch.cuda, "memory_allocated", said("held", 7))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", said("peak", 9))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", said("reset"))
    memory = device_memory(torch.device("cuda", 0))
    assert memory is not None and memory.free() == 70
    assert calls == ["wait", "give back", "ask"]
    memory.reset_peak()
    assert (memory.held(), memory.peak()) == (7, 9)
    assert device_memory(torch.device("cpu")) is None
