"""Times of steps on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Clock(Protocol):
    """Measures a device."""

    def seconds(self, step: Callable[[], object], times: int) -> float:
        """Mean time of a step, from the first one's launch to the last one's end."""
        ...


class CudaClock:
    """See `Clock`."""

    def seconds(self, step: Callable[[], object], times: int) -> float:
        """See `Clock`."""
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times
