"""A random weight of every scheme."""

from __future__ import annotations

from collections.abc import Callable

import torch

from baton_worker.kernels.cpu.int8_linear import Int8Weight
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.quantized_weights import UnreadWeight
from baton_worker.kernels.rotated_linear import RotatedWeight
from baton_worker.kernels.weight import QuantizedWeight
from tests.support.worker.random_products import some, some_blocks

N, K = 24, 512


def gptq(bits: int, *, in_order: bool = True) -> GptqWeight:
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (N, K), dtype=torch.uint8, generator=generator)
    zeros = torch.randint(0, 1 << bits, (4, N), dtype=torch.int16, generator=generator)
    made = GptqWeight.of(codes, bits, some(4, N), zeros)
    if in_order:
        return made
    mixed = made.groups[torch.randperm(K, generator=generator)]
    return GptqWeight(bits, made.words, made.scales, made.zeros, mixed).checked()


def fp8(block: tuple[int, int]) -> Fp8Weight:
    scales = some(-(-N // block[0]), -(-K // block[1])).abs()
    return Fp8Weight(some(N, K).to(torch.float8_e4m3fn), scales, block, Inputs())


def nvfp4() -> Nvfp4Weight:
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8, generator=generator)
    return Nvfp4Weight(codes, some(N, K // 16).to(torch.float8_e4m3fn), torch.tensor(0.3))


def unread() -> UnreadWeight:
    blocks = some_blocks("int8", N, K)
    return UnreadWeight("int8", blocks.shape, lambda rows: blocks[rows])


def mxfp4() -> Mxfp4Weight:
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 256, (N, K // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(110, 127, (N, K // 32), dtype=torch.uint8, generator=generator)
    return Mxfp4Weight(codes, scales)


def rotated() -> RotatedWeight:
    """With an orthogonal matrix whose products are exact in any order of sums."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(6))
    return RotatedWeight(mxfp4(), -torch.eye(64)[order], 0.25)


def int8() -> Int8Weight:
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(1, 256, (N, K), dtype=torch.uint8, generator=generator)
    zeros = torch.full((1, N), 128, dtype=torch.int16)
    return Int8Weight(GptqWeight.of(codes, 8, some(1, N).abs() / 100, zeros))


WEIGHTS: dict[str, Callable[[], QuantizedWeight]] = {
    "blocks": lambda: some_blocks("int4_super", N, K),
    "unread": unread,
    "gptq": lambda: gptq(4),
    "three bits": lambda: gptq(3),
    "act-order": lambda: gptq(4, in_order=False),
    "fp8": lambda: fp8((N, K)),
    "fp8 rows": lambda: fp8((1, K)),
    "fp8 blocks": lambda: fp8((5, 64)),
    "nvfp4": nvfp4,
    "mxfp4": mxfp4,
    "rotated": rotated,
    "int8": int8,
}
