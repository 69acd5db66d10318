"""What is queued where, with stand-ins for CUDA's streams and events."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from baton_worker.platform.side_stream import CudaSideStream, side_stream

CALLS: list[tuple[str, ...]] = []


class Stream:
    def __init__(self, device: object, name: str = "side") -> None:
        self.name = name

    def wait_event(self, event: Event) -> None:
        CALLS.append((self.name, "waits for", event.where))


class Event:
    where = ""

    def record(self, stream: Stream) -> None:
        self.where = stream.name

    def synchronize(self) -> None:
        CALLS.append(("host", "waits for", self.where))


@contextmanager
def on(stream: Stream) -> Any:
    CALLS.append(("queue", stream.name))
    yield


def test_a_fence_is_on_the_stream_of_steps_and_the_host_waits_for_its_own_copy_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CALLS.clear()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream(device, "steps"))
    side = side_stream(torch.device("cuda", 0))
    assert isinstance(side, CudaSideStream)
    fence = side.fence()
    with side.queue():
        fence.wait()
    side.settle()
    assert CALLS == [
        ("queue", "side"),
        ("side", "waits for", "steps"),
        ("host", "waits for", "side"),
    ]
    assert side_stream(torch.device("cpu")) is None
