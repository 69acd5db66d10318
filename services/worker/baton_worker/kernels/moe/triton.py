"""Fused products on a GPU, of floats or of weights that stay packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from baton_worker.kernels import packed_weights
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.moe.experts import Experts, PackedParts, rounded
from baton_worker.kernels.packed_weights import PackedWeights, alike, pack, stacked
from baton_worker.kernels.weight import QuantizedWeight


class TritonExperts:
    """The fused products of `kernels.triton.moe`, which is imported only where it can run."""

    _DTYPES = (torch.float32, torch.bfloat16, torch.float16)
    capture_blocker = None
    takes_adapters = False

    def __init__(self, experts: Experts) -> None:
        from baton_worker.kernels.triton import moe

        experts, device = rounded(experts), experts.down.device
        gate_up = _weights(experts.gate_up, experts.packed_gate_up, device)
        down = _weights(experts.down, experts.packed_down, device)
        self._experts = moe.FusedExperts(
            *(gate_up, down, experts.gate_up_bias, experts.down_bias),
            *(experts.gate, experts.weigh_input),
            *(_inputs(experts.packed_gate_up), _inputs(experts.packed_down)),
            experts.exact,
        )
        self._forward = moe.forward
        self.nbytes = gate_up.nbytes + down.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Refuses what the device, its tensor cores or the installation do not support."""
        if experts.down.device.type != "cuda":
            return "it needs a GPU"
        if experts.down.dtype not in cls._DTYPES:
            return f"it has no product for {experts.down.dtype}"
        if find_spec("triton") is None:
            return "triton is not installed"
        return _refuses(experts.packed_gate_up) or _refuses(experts.packed_down)

    @classmethod
    def takes(cls, weight: QuantizedWeight) -> bool:
        """See `ExpertKernel`."""
        return packed_weights.refuses(weight) is None

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        return self._forward(self._experts, x, experts, weights)


def _weights(
    floats: Tensor, packed: Sequence[PackedParts | None], device: torch.device
) -> Tensor | PackedWeights:
    """[E, N, K], packed on the device one expert after the other if all are quantised."""
    if not any(packed):
        return floats
    each: Iterator[PackedWeights] = (pack(parts, device) for parts in packed if parts is not None)
    return stacked(each, len(packed))


def _refuses(packed: Sequence[PackedParts | None]) -> str | None:
    """Why the weights of one of the products are no packed weight, as half a sentence."""
    if not any(packed):
        return None
    if any(parts is None for parts in packed):
        return "some of its experts are floats"
    first, *others = (weight for parts in packed if parts is not None for weight in parts)
    if any(not alike(first, other) for other in others):
        return "its experts are stored, or their inputs rounded, in several ways"
    if isinstance(first, Fp8Weight) and first.inputs.per_tensor:
        return "the tokens of an expert share a scale"
    return None


def _inputs(packed: Sequence[PackedParts | None]) -> Inputs | None:
    first = next((parts[0] for parts in packed if parts is not None), None)
    return first.inputs if isinstance(first, Fp8Weight) else None
