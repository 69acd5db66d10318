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
from tests.fakes.host_memory import HostDriver


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
