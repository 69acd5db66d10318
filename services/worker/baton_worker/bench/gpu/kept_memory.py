"""How fast a device reads memory of the process that keeps weights and pages for workers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from baton_worker.device_keeper.kept_memory import CudaOpener, KeeperClient
from baton_worker.device_keeper.messages import Lease, Leased
from baton_worker.device_keeper.read_rate import read_rates

_BYTES = 8 << 30
_SECONDS = 60.0


def measure(device: torch.device) -> dict[str, float]:
    """Bytes per second, by `ReadRates`; empty without a GPU, or where the keeper has no memory."""
    if device.type != "cuda":
        return {}
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        command = [sys.executable, "-m", "baton", "device-keeper", "--run-dir", folder]
        keeper = subprocess.Popen(command)
        try:
            return _of(device, Path(folder))
        finally:
            keeper.kill()
            keeper.wait()


def _of(device: torch.device, run_dir: Path) -> dict[str, float]:
    """By messages: a client of a worker would end this process with the keeper."""
    end = time.monotonic() + _SECONDS
    while (client := KeeperClient.of(run_dir, device)) is None:
        if time.monotonic() > end:
            return {}
        time.sleep(0.1)
    answer = client.ask(Lease("bench", b"", _BYTES, 0))
    if not isinstance(answer, Leased):
        return {}
    memory = CudaOpener(device).open(answer.handle, _BYTES, lambda: None)
    rates = read_rates(memory)
    return {} if rates is None else asdict(rates)
