"""MXFP4 against its table of values."""

from __future__ import annotations

import torch

from baton_worker.kernels.mxfp4 import Mxfp4Weight, dequantise, stack

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_every_nibble_and_scale() -> None:
    blocks = torch.tensor([[high << 4 | low for low in range(16)] for high in range(16)])
    values = dequantise(blocks.to(torch.uint8)[:, None], torch.full((16, 1), 127).to(torch.uint8))
    signed = E2M1 + [-value for value in E2M1]
    for high in range(16):
        expected = [value for low in range(16) for value in (signed[low], signed[high])]
        assert values[high].tolist() == expected


def test_a_scale_is_a_power_of_two() -> None:
    ones = torch.full((3, 16), 0x22, dtype=torch.uint8)
    scales = torch.tensor([120, 127, 130], dtype=torch.uint8)
    rows = dequantise(ones, scales).view(3, 32)
    assert rows[:, 0].tolist() == [2.0**-7, 1.0, 8.0]
    assert (rows == rows[:, :1]).all() and torch.equal(rows, rows.bfloat16().float())


def test_agrees_with_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (2, 6, 3), dtype=torch.uint8)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(dequantise(blocks, scales), theirs.transpose(1, 2))


def test_experts_and_their_blocks_are_the_same_numbers() -> None:
    codes = torch.randint(0, 256, (2, 6, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 140, (2, 6, 3), dtype=torch.uint8)
    experts, floats = stack(codes, scales), dequantise(codes, scales)
    assert experts.shape == floats.shape == (2, 6, 96)
    assert torch.equal(experts.dequantise(), floats)
    assert isinstance(experts[1], Mxfp4Weight)
    blocks = experts[1].blocks()
    assert blocks is not None and blocks.kind == "mxfp4"
    assert torch.equal(blocks[2:5].dequantise(), floats[1, 2:5])
