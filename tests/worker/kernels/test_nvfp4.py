"""NVFP4 against its table of values."""

from __future__ import annotations

import torch

from baton_worker.kernels.nvfp4 import Nvfp4Weight

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_every_nibble_times_its_scale_times_the_factor() -> None:
    codes = torch.tensor([[high << 4 | low for low in range(16)] for high in range(16)]).byte()
    scales = torch.tensor([[0.5, 448.0]] * 16).to(torch.float8_e4m3fn)
    weight = Nvfp4Weight(codes, scales, torch.tensor(0.25))
    signed, found = E2M1 + [-value for value in E2M1], weight.dequantise()
    assert weight.shape == found.shape == (16, 32)
    assert weight.blocks() is None, "rows are shorter than a chunk"
    for high in range(16):
        pairs = [value for low in range(16) for value in (signed[low], signed[high])]
        factors = [0.125] * 16 + [112.0] * 16
        assert found[high].tolist() == [v * f for v, f in zip(pairs, factors, strict=True)]


def test_blocks_are_the_same_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (5, 64), dtype=torch.uint8, generator=generator)
    scales = torch.randn(5, 8, generator=generator).to(torch.float8_e4m3fn)
    weight = Nvfp4Weight(codes, scales, torch.tensor(0.3))
    blocks = weight.blocks()
    assert blocks is not None and blocks.kind == "nvfp4" and blocks.shape == (5, 128)
    assert torch.equal(blocks.dequantise(), weight.dequantise())
    assert torch.equal(blocks[1:3].dequantise(), weight.dequantise()[1:3])
