"""The choice of each token's experts in C++."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel

_SCORES = {"softmax": 0, "sigmoid": 1, "sqrt_softplus": 2}
"""As `routing.cpp` numbers them."""


class _Routing(ctypes.Structure):
    """`baton::Routing` of routing.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("score", "num_scores", "top_k")),
        *((name, ctypes.c_int64) for name in ("num_groups", "top_groups", "group_width")),
        *((name, ctypes.c_int64) for name in ("each_group", "by_logits", "norm")),
        *((name, ctypes.c_double) for name in ("norm_floor", "scale")),
    )


class CpuRouter:
    """Experts and weights of tokens by their logits, each token by itself.

    Args:
        settings: of a router that `refuses` does not refuse.
        each_group: every group has as many of the experts, see
            `layers.moe.routers.group_top_k.each_group`.
    """

    def __init__(self, settings: spec.Router, each_group: bool) -> None:
        self._slots = settings.top_k
        self._routing = _Routing(
            score=_SCORES[settings.score],
            num_scores=settings.num_experts + settings.zero_experts,
            each_group=each_group,
            by_logits=settings.by_logits,
            norm=int(settings.norm or 0),
            norm_floor=max(settings.norm_floor, torch.finfo(torch.float32).tiny),
            **{
                name: getattr(settings, name)
                for name in ("top_k", "num_groups", "top_groups", "group_width", "scale")
            },
        )
        kernels = library("routing")
        assert kernels is not None, "refuses() was not asked"
        self._run = Kernel(kernels.baton_route, 6, tokens=3)

    @classmethod
    def refuses(cls, settings: spec.Router, device: torch.device) -> str | None:
        """Why it cannot route so, as half a sentence; None if it can."""
        if device.type != "cpu":
            return "it is not on the CPU"
        if settings.score not in _SCORES or settings.norm not in (None, 1, 2):
            return "it has no such score or norm"
        if library("routing") is None:
            return "the CPU kernels could not be built"
        return None

    def __call__(self, logits: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
        """float32 logits [T, scores] and a correction [scores] to experts int64 [T, top_k] and
        weights float32 of that shape."""
        assert logits.dtype is torch.float32 and logits.shape[1] == self._routing.num_scores
        assert correction is None or correction.dtype is torch.float32
        logits = logits.contiguous()
        experts = torch.empty(len(logits), self._slots, dtype=torch.int64)
        weights = torch.empty(len(logits), self._slots)
        self._run(
            ctypes.addressof(self._routing), logits, correction, len(logits), experts, weights
        )
        return experts, weights


@cache
def cpu_router(
    settings: spec.Router, device: torch.device, *, each_group: bool = False
) -> CpuRouter | None:
    """The router of these settings, which lives on; None if there is none on this device."""
    refused = CpuRouter.refuses(settings, device) is not None
    return None if refused else CpuRouter(settings, each_group)
