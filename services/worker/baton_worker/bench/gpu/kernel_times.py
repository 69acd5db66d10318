"""Times of the kernels, beside the least that the device allows."""

from __future__ import annotations

from typing import Any

import torch

from baton_worker.bench.gpu.ceilings import Ceilings
from baton_worker.bench.gpu.device_timer import DeviceTimer
from baton_worker.bench.gpu.kernel_case import KernelCase, Sizes
from baton_worker.bench.gpu.kernel_cases import cases


def distance(case: KernelCase) -> float:
    """Greatest difference from the reference, as a part of its largest number."""
    result, expected = case.run().double(), case.reference().double()
    difference = (result - expected).abs().amax() / expected.abs().amax().clamp(min=1e-30)
    return float(difference)  # NaN where the kernel has written one.


def poison(device: torch.device, nbytes: int) -> None:
    """Fill memory that is about to be given out again with NaN: a kernel that does not write all
    of its output shows it."""
    parts = [torch.full((nbytes // 64,), torch.nan, device=device) for _ in range(16)]
    del parts


def measure(
    timer: DeviceTimer, ceilings: Ceilings, dtype: torch.dtype, sizes: Sizes
) -> list[dict[str, Any]]:
    """A row for each kernel: microseconds, and the part of them that the floor is."""
    rows = []
    for case in cases(timer.device, dtype, sizes):
        seconds, floor = timer.seconds(case.run), ceilings.floor(case.nbytes, case.flops)
        rows.append(
            {
                "kernel": case.name,
                "dtype": str(dtype).removeprefix("torch."),
                "us": seconds * 1e6,
                "floor_us": floor * 1e6,
                "of_floor": floor / seconds,
            }
        )
    return rows
