"""Routed experts, with weights in floats and packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.bench.gpu.case_inputs import CaseInputs
from baton_worker.bench.gpu.kernel_case import KernelCase
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.moe.triton import TritonExperts
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.quantized_weights import quantise
from baton_worker.kernels.weight import QuantizedWeight


def _as_int4(weight: Tensor) -> GptqWeight:
    groups = torch.unflatten(weight.float().cpu(), 1, (-1, min(128, weight.shape[1])))
    scales = groups.abs().amax(-1) / 7
    codes = (groups / scales[..., None]).round().add(8).to(torch.uint8).flatten(1)
    zeros = torch.full(scales.T.shape, 8, dtype=torch.int16)
    return GptqWeight.of(codes, 4, scales.T.half(), zeros).to(weight.device)


def _as_mxfp4(weight: Tensor) -> Mxfp4Weight:
    blocks = quantise(weight.cpu(), "mxfp4")
    codes = blocks.codes.view(torch.uint8).view(len(weight), -1, 16, 2)
    return Mxfp4Weight(codes[..., 0] | codes[..., 1] << 4, blocks.scales).to(weight.device)


def _as_fp8(weight: Tensor) -> Fp8Weight:
    codes, scales = Inputs().quantise(weight)
    return Fp8Weight(codes, scales, (1, weight.shape[1]), Inputs())


PACKED: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "int4": _as_int4,
    "mxfp4": _as_mxfp4,
    "fp8": _as_fp8,
}
"""What rounds a weight to a format of experts."""


def experts(inputs: CaseInputs, tokens: int, format: str = "floats") -> KernelCase:
    """Routed experts, as floats or packed: "int4", "mxfp4" or "fp8"."""
    sizes = inputs.sizes
    hidden = sizes.hidden // 2
    layer, first, second = _layer(inputs, hidden, format)
    kernel = TritonExperts(layer)
    x = inputs.random(tokens, hidden)
    order = torch.rand(tokens, sizes.experts, generator=inputs.generator, device=inputs.device)
    chosen = order.argsort(-1)[:, : sizes.top_k]
    weights = torch.full((tokens, sizes.top_k), 1 / sizes.top_k, device=inputs.device)

    def reference() -> Tensor:
        out = torch.zeros(tokens, hidden, dtype=torch.float64, device=inputs.device)
        for expert in range(sizes.experts):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            inner = layer.gate(x[token].double() @ first[expert].double().T)
            back = inner @ second[expert].double().T
            out.index_add_(0, token, back * weights[token, slot, None].double())
        return out

    used = min(sizes.experts, tokens * sizes.top_k)
    nbytes = kernel.nbytes * used // sizes.experts
    flops = 2 * tokens * sizes.top_k * 3 * sizes.expert_size * hidden
    run = partial(kernel, x, chosen, weights)
    name = f"experts in {format}, {tokens} tokens"
    near = 0.1 if format == "fp8" else inputs.tolerance  # Their inputs are rounded.
    return KernelCase(name, run, reference, nbytes, flops, near)


def _layer(inputs: CaseInputs, hidden: int, format: str) -> tuple[Experts, Tensor, Tensor]:
    """Experts, and what their weights mean: [experts, rows, columns] of both products."""
    count, size = inputs.sizes.experts, inputs.sizes.expert_size
    layer = Experts(
        inputs.random(count, 2 * size, hidden, scale=hidden**-0.5),
        inputs.random(count, hidden, size, scale=size**-0.5),
        None,
        None,
        lambda inner: F.silu(inner[..., :size]) * inner[..., size:],
    )
    first, second = layer.gate_up, layer.down
    if format == "floats":
        return layer, first, second
    # The same weight for each, in memory of its own.
    one, other = (PACKED[format](stack[0]) for stack in (first, second))
    first, second = (weight.dequantise().expand(count, -1, -1) for weight in (one, other))
    packed = replace(layer, packed_gate_up=[(one,)] * count, packed_down=[(other,)] * count)
    return packed, first, second
