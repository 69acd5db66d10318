"""A step is run once before it is measured, and the device is waited for."""

from __future__ import annotations

import pytest
import torch

from baton_worker.platform.device_clock import CudaClock


def test_steps_are_measured_between_two_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    events = list[str]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    assert CudaClock().seconds(lambda: events.append("step"), 3) > 0
    assert events == ["step", "wait", "step", "step", "step", "wait"]
