"""Weights of every format that is packed for a GPU, with random codes."""

from __future__ import annotations

import torch

from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.gptq import GptqWeight, unpack
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.weight import QuantizedWeight
from tests.support import quantized_checkpoints


def gptq(bits: int, rows: int, depth: int, group: int, *, order: bool = False) -> GptqWeight:
    """As AutoGPTQ stores it, with zero points of its own."""
    method = quantized_checkpoints.gptq(bits, group, act_order=order, symmetric=False)
    stored, _ = method(torch.randn(rows, depth))
    zeros = unpack(stored["qzeros"].view(torch.uint8), bits).to(torch.int16) + 1
    return GptqWeight(bits, stored["qweight"], stored["scales"], zeros, stored["g_idx"])


def mxfp4(rows: int, depth: int) -> Mxfp4Weight:
    """With scales near 1, and the least one, which has no exponent of its own."""
    codes = torch.randint(0, 256, (rows, depth // 32, 16), dtype=torch.uint8)
    scales = torch.randint(122, 130, (rows, depth // 32), dtype=torch.uint8)
    scales[0] = 0
    return Mxfp4Weight(codes, scales)


def nvfp4(rows: int, depth: int) -> Nvfp4Weight:
    codes = torch.randint(0, 256, (rows, depth // 2), dtype=torch.uint8)
    scales = (torch.rand(rows, depth // 16) * 3).to(torch.float8_e4m3fn)
    return Nvfp4Weight(codes, scales, torch.rand(()) + 0.1)


def fp8(rows: int, depth: int, block: tuple[int, int], inputs: Inputs | None = None) -> Fp8Weight:
    codes = torch.randn(rows, depth).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // block[0]), -(-depth // block[1])) + 0.5
    return Fp8Weight(codes, scales, block, inputs or Inputs())


def each(rows: int, depth: int) -> dict[str, QuantizedWeight]:
    """A weight of every format; `depth` is a multiple of 32 and need not be one of a tile."""
    generator = torch.random.get_rng_state()
    torch.manual_seed(rows + depth)
    made: dict[str, QuantizedWeight] = {
        "int4, groups of 32": gptq(4, rows, depth, 32),
        "int4, one group": gptq(4, rows, depth, depth),
        "int4 in the order of activations": gptq(4, rows, depth, 32, order=True),
        "int8": gptq(8, rows, depth, 32),
        "mxfp4": mxfp4(rows, depth),
        "nvfp4": nvfp4(rows, depth),
        "fp8 by row": fp8(rows, depth, (1, depth)),
        "fp8 by block": fp8(rows, depth, (32, 32), Inputs(32)),
    }
    torch.random.set_rng_state(generator)
    return made
