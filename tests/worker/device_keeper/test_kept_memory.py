"""A worker's side of a keeper: memory becomes a tensor, and ends with who holds it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.device_keeper import kept_memory
from baton_worker.device_keeper.kept_memory import CudaOpener, KeeperClient
from baton_worker.device_keeper.read_rate import ReadRates
from tests.fakes.host_memory import HostDriver
from tests.fakes.kept_device import kept_device


def test_opened_memory_is_a_tensor_that_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, closed, seen = HostDriver(tmp_path), list[str](), dict[str, Any]()
    monkeypatch.setattr(driver, "close", lambda start: closed.append(f"memory {start}"))

    def as_tensor(owner: Any, device: torch.device) -> torch.Tensor:
        seen.update(owner.__cuda_array_interface__, device=device, owner=owner)
        return torch.zeros(16, dtype=torch.uint8)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    device = torch.device("cuda", 1)
    memory = CudaOpener(device, driver).open(b"4096", 16, lambda: closed.append("told"))
    assert (seen["shape"], seen["typestr"], seen["data"]) == ((16,), "|u1", (4096, False))
    assert seen["device"] == device and len(memory) == 16 and not closed
    seen.clear()
    gc.collect()
    assert closed == ["memory 4096", "told"]


def test_only_a_gpu_with_a_keeper_has_one(run_dir: Path) -> None:
    assert KeeperClient.of(run_dir, torch.device("cpu")) is None
    assert KeeperClient.of(run_dir, torch.device("cuda", 0)) is None


def test_memory_that_is_read_slowly_is_given_back(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """But not what a worker before has left: another one may use the device meanwhile."""
    rates = ReadRates(there=1.7e12, own=2.8e12)
    with kept_device(run_dir, tmp_path) as kept:
        first = kept.client.lease("weights 7", b"k", 64)
        assert first is not None
        monkeypatch.setattr(kept_memory, "_slow", lambda memory: rates.slow)
        again = kept.client.lease("weights 7", b"k", 64)
        assert again is not None and again.as_left
        assert kept.client.lease("weights 8", b"k", 64) is None
        assert not kept.client.find("weights 8").generation
    assert "at 1700 GB/s, and its own at 2800" in caplog.text


def test_a_worker_ends_with_its_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal, as from outside: no request is to blame."""
    sent = list[tuple[int, int]]()
    keeper = subprocess.Popen(["sleep", "60"])
    descriptor = os.pidfd_open(keeper.pid)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
        watching = threading.Thread(target=kept_memory._end_with, args=(descriptor,))
        watching.start()
        watching.join(0.1)
        assert watching.is_alive() and not sent
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        watching.join(60)
    keeper.wait()
    os.close(descriptor)
    assert sent == [(os.getpid(), signal.SIGKILL)]
