"""Functions that run again: the twin, and in which order a GPU is asked."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from baton_worker.graphs.capture import CudaRecorder, Repeater, Uncaptured
from baton_worker.kernels.cpu.call_recorder import Extent

CPU, ONE = torch.device("cpu"), Extent.decode(1)


def test_the_twin_runs_a_function_on_what_its_memory_holds_now() -> None:
    given, answer = torch.ones(3), torch.empty(3)
    recording = Repeater().capture(lambda: answer.copy_(given * 2), ONE)  # type: ignore[arg-type, return-value]
    assert answer.tolist() == [2, 2, 2]
    given.fill_(5)
    assert answer.tolist() == [2, 2, 2]
    recording.replay(ONE)
    assert answer.tolist() == [10, 10, 10]


class FakeStream:
    def __init__(self, said: list[str], name: str) -> None:
        self.said, self.name = said, name

    def wait_stream(self, other: FakeStream) -> None:
        self.said.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a GPU that is not there is told."""
    told: list[str] = []
    current = FakeStream(told, "current")

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        told.append(f"on {stream.name}")
        yield
        told.append("off")

    @contextmanager
    def graph(
        made: Any, *, pool: str, stream: FakeStream, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        told.append(f"capture into {pool} on {stream.name}")
        yield
        told.append("captured")

    for name, fake in {
        "Stream": lambda device: FakeStream(told, "side"),
        "graph_pool_handle": lambda: "the pool",
        "CUDAGraph": object,
        "current_stream": lambda device: current,
        "stream": on,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return told


def test_kernels_are_compiled_before_the_stream_of_the_capture_is_captured(
    said: list[str],
) -> None:
    recorder = CudaRecorder(CPU)
    for _ in range(2):
        said.clear()
        recorder.capture(lambda: said.append("run"), ONE)
        assert said == [
            "side waits for current",
            *("on side", "run", "run", "off"),
            "current waits for side",
            *("capture into the pool on side", "run", "captured"),
        ]


def test_a_graph_keeps_the_tensors_that_it_reads(said: list[str]) -> None:
    plan = torch.ones(3)
    there = weakref.ref(plan)
    recording = CudaRecorder(CPU).capture(partial(torch.neg, plan), ONE)  # type: ignore[arg-type]
    del plan
    assert there() is not None
    del recording
    assert there() is None


def test_what_cannot_be_captured_says_why(said: list[str]) -> None:
    def run() -> None:
        if any(word.startswith("capture") for word in said):
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(Uncaptured, match=r"not permitted when .*--max-cudagraph-capture-size"):
        CudaRecorder(CPU).capture(run, ONE)
