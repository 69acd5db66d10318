"""Fused products on a GPU, of floats or of weights that stay packed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from baton_worker.kernels import packed_weights
from baton_worker.kernels.fp8 import Fp8Stack, Fp8Weight, Inputs
from baton_worker.kernels.moe.experts import Experts, PackedParts, rounded
from baton_worker.kernels.moe.store import StackedStore
from baton_worker.kernels.movable import prefixed
from baton_worker.kernels.packed_linear import has_float8
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
            *(experts.gate, experts.fused, experts.weigh_input),
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

    @property
    def store(self) -> StackedStore:
        """See `ExpertKernel`."""
        e = self._experts
        stacks: dict[str, Tensor | None]
        stacks = {"gate_up_bias": e.gate_up_bias, "down_bias": e.down_bias}
        formats = list[object]()
        for name, weights, inputs in (
            ("gate_up", e.gate_up, e.gate_up_inputs),
            ("down", e.down, e.down_inputs),
        ):
            stacks |= prefixed(name, _stacks(weights))
            formats.append((_format(weights), None if inputs is None else inputs.kind))
        ordered = any(name.endswith(".order") for name in stacks)
        why = "an order of channels (g_idx) is common to those of a rank" if ordered else None
        return StackedStore(stacks, formats, why)

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        return self._forward(self._experts, x, experts, weights)


def _stacks(weights: Tensor | PackedWeights | Fp8Stack) -> dict[str, Tensor]:
    """By name the tensors of all experts, and the order of channels if there is one."""
    if isinstance(weights, Tensor):
        return {"weight": weights}
    if isinstance(weights, Fp8Stack):
        return {"codes": weights.codes.view(torch.uint8), "scales": weights.scales}
    return weights.tensors()


def _format(weights: Tensor | PackedWeights | Fp8Stack) -> object:
    """Equal for weights whose tensors mean the same."""
    if isinstance(weights, Tensor):
        return "floats"
    if isinstance(weights, Fp8Stack):
        return weights.block, weights.inputs.kind
    w = weights
    return w.values, w.scale_type, w.bits, w.group, w.depth


def _weights(
    floats: Tensor, packed: Sequence[PackedParts | None], device: torch.device
) -> Tensor | PackedWeights | Fp8Stack:
    """[E, N, K], packed on the device one expert after the other if all are quantised."""
    if not any(packed):
        return floats
    each = [parts for parts in packed if parts is not None]
    if has_float8(device) and (codes := _codes(each, device)) is not None:
        return codes
    return stacked((pack(parts, device) for parts in each), len(each))


def _codes(packed: Sequence[PackedParts], device: torch.device) -> Fp8Stack | None:
    """Weights of 8-bit floats as the checkpoint stores them, for tensor cores that take codes; None
    for others."""
    from baton_worker.kernels.triton.fp8 import refuses

    weights = [[part for part in parts if isinstance(part, Fp8Weight)] for parts in packed]
    if not all(weights) or refuses(first := weights[0][0], device):
        return None
    alone = len({(part.block, part.shape) for some in weights for part in some}) == 1
    if not alone or first.shape[0] % first.block[0]:
        # Blocks of rows that cross from one part into the next: a scale for each row.
        weights = [[part[:] for part in some] for some in weights]
    block, inputs = weights[0][0].block, first.to(device).inputs
    codes = [[part.codes.view(torch.uint8) for part in some] for some in weights]
    scales = [[part.scales.float() for part in some] for some in weights]
    return Fp8Stack(
        _joined(codes, device).view(torch.float8_e4m3fn), _joined(scales, device), block, inputs
    )


def _joined(parts: Sequence[Sequence[Tensor]], device: torch.device) -> Tensor:
    """The rows of each expert's parts, expert after expert, copied to the device one by one: there
    is no room for two."""
    rows, (_, *width) = sum(len(part) for part in parts[0]), parts[0][0].shape
    whole = torch.empty(len(parts), rows, *width, dtype=parts[0][0].dtype, device=device)
    for into, some in zip(whole, parts, strict=True):
        for place, part in zip(into.split([len(one) for one in some]), some, strict=True):
            place.copy_(part)
    return whole


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
