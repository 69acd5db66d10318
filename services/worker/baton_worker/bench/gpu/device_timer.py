"""Times of work that is queued on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_FILLS = 12
"""Writes of the cache between runs, a millisecond on an H100: the host queues a run meanwhile, so
that its time is that of the device alone."""


class DeviceTimer:
    """Measures functions that queue work; on a CPU they do the work themselves.

    Args:
        device: where it runs.
        times: runs of each function; the median counts.
    """

    def __init__(self, device: torch.device, times: int = 20) -> None:
        self.device, self._times = device, times
        size = 1 << 28 if device.type == "cuda" else 1 << 10
        # Written between runs, so that none finds its inputs in the second-level cache.
        self._cache = torch.empty(size, dtype=torch.uint8, device=device)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, run: Callable[[], object]) -> float:
        """Median seconds of a run on the device, after one that compiles and chooses kernels."""
        run()
        self.synchronize()
        return statistics.median(self._once(run) for _ in range(self._times))

    def _once(self, run: Callable[[], object]) -> float:
        for _ in range(_FILLS if self.device.type == "cuda" else 1):
            self._cache.zero_()
        if self.device.type != "cuda":
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        event: Any = torch.cuda.Event
        first, last = (event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3
