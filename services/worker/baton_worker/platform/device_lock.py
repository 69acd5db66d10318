"""Workers that share a GPU take its memory one after the other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from baton.logs import logger

log = logger(__name__)


@contextmanager
def memory_lock(device: torch.device, run_dir: Path) -> Iterator[None]:
    """While it is held, no other worker of this run directory measures the memory of the device or
    takes any at its start: free memory stays free. The system releases the lock if this process
    ends. A CPU has no lock.

    Args:
        run_dir: directory of sockets that the workers of a machine share.
    """
    if device.type == "cpu":
        yield
        return
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = run_dir / f"{device.type}-{device.index or 0}.lock"
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another worker starts on %s: waiting for it", device)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
