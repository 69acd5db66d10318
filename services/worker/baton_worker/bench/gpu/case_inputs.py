"""Random inputs of the kernels' cases."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.bench.gpu.kernel_case import Sizes

SEED = 0


class CaseInputs:
    """Inputs of one dtype on one device. All cases draw from one generator, one after the other."""

    def __init__(self, device: torch.device, dtype: torch.dtype, sizes: Sizes) -> None:
        self.device, self.dtype, self.sizes = device, dtype, sizes
        self.generator = torch.Generator(device).manual_seed(SEED)
        self.tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        """See `KernelCase.tolerance`."""

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normally distributed numbers."""
        values = torch.randn(shape, generator=self.generator, device=self.device)
        return values.mul_(scale).to(self.dtype)
