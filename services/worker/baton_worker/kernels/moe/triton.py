"""One fused launch per product, on a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from baton_worker.kernels.moe.experts import Experts, rounded


class TritonExperts:
    """The fused products of `kernels.triton.moe`, which is imported only where it can run."""

    _DTYPES = (torch.float32, torch.bfloat16, torch.float16)
    capture_blocker = None
    takes_packed = False
    takes_adapters = False

    def __init__(self, experts: Experts) -> None:
        from baton_worker.kernels.triton import moe

        self._experts, self._forward = rounded(experts), moe.forward
        self.nbytes = self._experts.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Refuses what the device, its tensor cores or the installation do not support."""
        if experts.down.device.type != "cuda":
            return "it needs a GPU"
        if experts.down.dtype not in cls._DTYPES:
            return f"it has no product for {experts.down.dtype}"
        return None if find_spec("triton") else "triton is not installed"

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        return self._forward(self._experts, x, experts, weights)
