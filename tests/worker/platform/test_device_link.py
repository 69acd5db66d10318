"""Copies of a GPU, in the calls that they consist of: tests/gpu has the device itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton_worker.platform.device_link import CudaLink


def test_copies_are_queued_from_pinned_memory_and_an_event_tells_when_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = list[str]()

    class Event:
        def record(self) -> None:
            said.append("record")

        def query(self) -> bool:
            return False

        def synchronize(self) -> None:
            said.append("wait")

    plain, copy = torch.empty, torch.Tensor.copy_

    def empty(*shape: Any, pin_memory: bool = False, **others: Any) -> torch.Tensor:
        said.append(f"pinned {pin_memory}")
        return plain(*shape, **others)

    def copied(
        target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        said.append(f"copy {non_blocking}")
        return copy(target, source)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    link, there = CudaLink(), torch.zeros(4, dtype=torch.uint8)
    link.upload(link.pinned(4).fill_(7), there)
    read = link.download(there)
    assert said == ["pinned True", "copy True", "pinned True", "copy True", "record"]
    assert not read.ready and read.wait().tolist() == [7] * 4 and said[-1] == "wait"
