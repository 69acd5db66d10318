"""Two workers on one GPU do not measure its memory at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from baton_worker.platform.device_lock import memory_lock

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


def test_one_worker_after_the_other(tmp_path: Path) -> None:
    entered, run_dir = threading.Event(), tmp_path / "run"

    def other() -> None:
        with memory_lock(torch.device("cuda"), run_dir):
            entered.set()

    thread = threading.Thread(target=other)
    with memory_lock(FIRST, run_dir):
        thread.start()
        with memory_lock(SECOND, run_dir), memory_lock(torch.device("cpu"), run_dir):
            assert not entered.wait(0.2), "it is the same GPU"
    thread.join(60)
    assert entered.is_set()
    assert {path.name for path in run_dir.iterdir()} == {"cuda-0.lock", "cuda-1.lock"}
