"""Gated output norm of state-space layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels import triton
from baton_worker.kernels.norm import CpuGatedNorm, TritonGatedNorm
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import SILU, sigmoid
from baton_worker.layers.layer import Layer

GATES = {"silu": SILU, "sigmoid": sigmoid}


class GatedNorm(Layer):
    """rms_norm(x * silu(gate)) * weight (Mamba-2, Dao and Gu 2024, arXiv:2405.21060), or with the
    gate after the norm."""

    def __init__(
        self, settings: spec.GatedNorm, size: int, role: str, context: BuildContext
    ) -> None:
        super().__init__()
        self.settings, self._name = settings, context.name(role)
        self.rms: Callable[[Tensor], Tensor] = partial(_rms, eps=settings.eps)
        """[..., width] divided by its root mean square."""
        self._size, self._placement = size, (context.dtype, context.device)
        self._kernel: CpuGatedNorm | TritonGatedNorm | None = None
        self.weight = context.empty(size // settings.groups if settings.shared else size)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The scale."""
        yield f"{self._name}.weight", self.weight

    def process_weights_after_loading(self) -> None:
        """Use the device's kernel if it has one."""
        settings = self.settings
        silu = settings.activation == "silu"
        if settings.cut:
            return
        if triton.runs(self._placement[1]):
            how = {"groups": settings.groups, "gate_first": settings.gate_first, "silu": silu}
            self._kernel = TritonGatedNorm(self.weight, settings.eps, **how)
        elif CpuGatedNorm.refuses(*self._placement) is None:
            self._kernel = CpuGatedNorm(
                self.weight,
                size=self._size,
                groups=settings.groups,
                eps=settings.eps,
                gate_first=settings.gate_first,
                silu=silu,
                dtype=self._placement[0],
            )

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """float32 [T, size] and a gate of any dtype to the dtype of the gate."""
        if self._kernel is not None:
            return self._kernel(x, gate)
        settings, weight = self.settings, self.weight.float()
        opened = GATES[settings.activation](gate.float())
        parts = torch.unflatten(x * opened if settings.gate_first else x, -1, (settings.groups, -1))
        normed = self.rms(parts)
        scaled = (normed * weight).flatten(1) if settings.shared else normed.flatten(1) * weight
        return (scaled if settings.gate_first else scaled * opened).to(gate.dtype)


def _rms(parts: Tensor, eps: float) -> Tensor:
    return F.rms_norm(parts, parts.shape[-1:], None, eps)
