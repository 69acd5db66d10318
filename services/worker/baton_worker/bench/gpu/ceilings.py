"""Measured peaks of a device: bytes moved and products computed in a second."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baton_worker.bench.gpu.device_timer import DeviceTimer


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates, of plain copies and of a large square product."""

    bytes_per_second: float
    """Read and written."""
    flops: float
    """Operations per second of a product in the dtype of the model."""

    def floor(self, nbytes: int, flops: int) -> float:
        """The least seconds for work that moves so many bytes and computes so much."""
        return max(nbytes / self.bytes_per_second, flops / self.flops)


def measure(timer: DeviceTimer, dtype: torch.dtype, *, copied: int, width: int) -> Ceilings:
    """Measure both.

    Args:
        copied: bytes of the copy.
        width: rows and columns of the matrices.
    """
    source = torch.ones(copied, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    moved = 2 * copied / timer.seconds(lambda: target.copy_(source))
    a = torch.randn(width, width, device=timer.device).to(dtype)
    computed = 2 * width**3 / timer.seconds(lambda: a @ a)
    return Ceilings(moved, computed)
