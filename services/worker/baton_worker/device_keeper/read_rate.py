"""How fast a device reads memory that another process has allocated, beside its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 1 << 30
"""Bytes from which on memory is looked at."""
_MOST = 8 << 30
"""Bytes that are read of it: more than translation caches reach."""
_OWN = 1 << 29
_PART = 1 << 28
"""Numbers that are added up at a time."""
_NEAR = 0.9
"""Part of the rate of own memory that is as good."""
_TIMES = 3


@dataclass(frozen=True, slots=True)
class ReadRates:
    """Bytes per second."""

    there: float
    """Of another process's memory."""
    own: float

    @property
    def slow(self) -> str | None:
        """Why the memory is no place for weights, as half a sentence; None if it is one."""
        if self.there >= _NEAR * self.own:
            return None
        return (
            f"the device reads memory of another process at {self.there / 1e9:.0f} GB/s, and its "
            f"own at {self.own / 1e9:.0f}"
        )


def read_rates(memory: Tensor) -> ReadRates | None:
    """Read both, which takes milliseconds; None if there is no room for own memory to compare with.

    Args:
        memory: uint8 [n] of a GPU.
    """
    try:
        private = torch.zeros(_OWN, dtype=torch.uint8, device=memory.device)
    except torch.OutOfMemoryError:
        return None
    rates = ReadRates(_rate(memory[:_MOST]), _rate(private))
    del private
    torch.cuda.empty_cache()  # Pages may take all that is free next.
    return rates


def _rate(memory: Tensor) -> float:
    numbers = memory[: len(memory) // 8 * 8].view(torch.int64)
    return numbers.nbytes / min(_seconds(numbers) for _ in range(_TIMES))


def _seconds(numbers: Tensor) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for part in torch.split(numbers, _PART):
        part.sum()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
