"""Loop over visits: the plain twin of the other kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.moe.dispatch import COUNTED
from baton_worker.kernels.moe.experts import Experts, rounded
from baton_worker.kernels.moe.store import StackedStore
from baton_worker.kernels.weight import QuantizedWeight


class LoopExperts:
    """The plain twin: every visit by itself, by definition."""

    capture_blocker = COUNTED
    takes_adapters = False

    def __init__(self, experts: Experts) -> None:
        self._experts = rounded(experts)
        self.nbytes = self._experts.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Never: it is the oracle of the other kernels."""
        return None

    @classmethod
    def takes(cls, weight: QuantizedWeight) -> bool:
        """Floats only."""
        return False

    @property
    def store(self) -> StackedStore:
        """See `ExpertKernel`."""
        return StackedStore.of(self._experts)

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        out = torch.zeros_like(x, dtype=torch.float32)
        for token, row in enumerate(experts.tolist()):
            for slot, expert in enumerate(row):
                if 0 <= expert < self._experts.down.shape[0]:
                    out[token] += self._visit(x[token], expert, weights[token, slot])
        return out.to(x.dtype)

    def _visit(self, x: Tensor, expert: int, weight: Tensor) -> Tensor:
        e = self._experts
        x = (x * weight).to(x.dtype) if e.weigh_input else x
        gate_up_bias = None if e.gate_up_bias is None else e.gate_up_bias[expert]
        down_bias = None if e.down_bias is None else e.down_bias[expert]
        inner = e.gate(F.linear(x, e.gate_up[expert], gate_up_bias))
        returned = F.linear(inner, e.down[expert], down_bias).float()
        return returned if e.weigh_input else returned * weight
