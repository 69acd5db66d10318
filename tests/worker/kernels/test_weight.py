"""What every quantised weight can do, against the floats that it means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.quantized_weights import UnreadWeight
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
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_shard_means_that_part_of_the_floats(name: str) -> None:
    weight = WEIGHTS[name]()
    floats = weight.dequantise()
    assert weight.shape == floats.shape == (N, K) and 0 < weight.nbytes < floats.nbytes // 2
    for rows in (slice(0, 8), slice(7, 21), slice(20, 99)):
        assert torch.equal(weight[rows].dequantise(), floats[rows])
    step = weight.column_multiple
    assert K % step == 0
    for first, count in ((0, K // 2), (K // 2, K // 2), (256, 256)):
        assert first % step == count % step == 0
        part = weight.columns(first, count)
        assert part.shape == (N, count)
        assert torch.equal(part.dequantise(), floats[:, first : first + count])


@pytest.mark.parametrize("name", WEIGHTS)
def test_padding_is_rows_of_zeros(name: str) -> None:
    weight = WEIGHTS[name]()
    padded = weight[3:9].padded(5)
    assert padded.shape == (11, K)
    assert torch.equal(padded.dequantise()[:6], weight.dequantise()[3:9])
    assert (padded.dequantise()[6:] == 0).all()
    assert torch.equal(weight.padded(0).dequantise(), weight.dequantise())


@pytest.mark.parametrize("name", WEIGHTS)
def test_on_another_device_it_is_the_same(name: str) -> None:
    weight = WEIGHTS[name]()
    half = weight.columns(K // 2, K // 2).to(torch.device("cpu"))
    assert torch.equal(half.dequantise(), weight.dequantise()[:, K // 2 :])


def test_columns_are_cut_between_groups() -> None:
    found = {name: make().column_multiple for name, make in WEIGHTS.items()}
    assert found == {
        **{"blocks": 256, "unread": 32, "gptq": 8, "three bits": 32, "act-order": 8},
        **{"fp8": 1, "fp8 rows": 1, "fp8 blocks": 64, "nvfp4": 16, "mxfp4": 32},
    }
