"""What codes mean, and that rounding to them loses little."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import (
    BlockQuantized,
    Rounding,
    UnreadWeight,
    concatenate,
    merge,
    quantise,
)


def noise(rows: int, depth: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, depth, generator=torch.Generator().manual_seed(seed))


def test_codes_scales_and_minima() -> None:
    codes = torch.tensor([[3] * 32 + [5] * 32], dtype=torch.int8)
    scales, minima = torch.tensor([[2.0, 0.5]]).half(), torch.tensor([[-1.0, 4.0]]).half()
    weight = BlockQuantized("int4_minimum", codes, scales, minima).dequantise()
    assert weight.tolist() == [[5.0] * 32 + [6.5] * 32]


def test_offsets_are_added_to_codes() -> None:
    codes = torch.tensor([[3] * 32 + [5] * 32], dtype=torch.int8)
    scales, offsets = torch.tensor([[2.0, 0.5]]).half(), torch.tensor([[-1, -16]]).to(torch.int8)
    weight = BlockQuantized("int4_offset", codes, scales, minimum_steps=offsets).dequantise()
    assert weight.tolist() == [[4.0] * 32 + [-5.5] * 32]


def test_super_scales_are_products() -> None:
    codes, factors = torch.ones(1, 512, dtype=torch.int8), torch.tensor([[0.5, 2.0]]).half()
    steps = torch.arange(32, dtype=torch.int8)[None] - 16
    weight = BlockQuantized("int6_super", codes, factors, scale_steps=steps).dequantise()
    expected = steps.float() * torch.tensor([0.5] * 16 + [2.0] * 16)
    assert torch.equal(weight, expected.repeat_interleave(16, 1))


ERRORS = {"int8": 0.006, "int4_minimum": 0.08, "fp8": 0.03, "mxfp4": 0.13, "nf4": 0.1}


@pytest.mark.parametrize(("kind", "error"), ERRORS.items())
def test_rounding_error_is_small(kind: str, error: float) -> None:
    weight = noise(40, 192)
    weight[3, 64:128] = 0
    blocks = quantise(weight, kind)
    assert blocks.shape == weight.shape
    assert KINDS[kind].lowest <= int(blocks.codes.min())
    assert int(blocks.codes.max()) <= KINDS[kind].highest
    assert float((blocks.dequantise() - weight).square().mean().sqrt()) < error


def test_each_code_is_the_nearest() -> None:
    """Of kinds whose scale is set by the largest value; a power of two may leave that over 6."""
    for kind in ("fp8", "mxfp4", "nf4"):
        blocks, weight = quantise(noise(8, 128), kind), noise(8, 128)
        form = KINDS[kind]
        if kind == "fp8":
            table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
            table = table[table.isfinite()]
        else:
            table = form.numbers(torch.arange(16, dtype=torch.int8))
        size = BlockQuantized(kind, torch.ones_like(blocks.codes), blocks.scales).dequantise()
        size /= form.numbers(torch.ones(1, dtype=torch.int8))
        least = (weight[..., None] / size[..., None] - table).abs().amin(-1) * size.abs()
        assert torch.allclose((blocks.dequantise() - weight).abs(), least, atol=1e-5), kind


def test_the_search_beats_the_full_range() -> None:
    groups = noise(64, 32).view(64, 1, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).half().float()
    plain = ((groups - low) / scale).round().clamp(0, 15) * scale + low
    found = quantise(groups[:, 0], "int4_minimum").dequantise()[:, None]
    assert (found - groups).square().mean() < 0.9 * (plain - groups).square().mean()


@pytest.mark.parametrize("kind", ["int8", "int4_minimum"])
def test_groups_of_one_value_are_exact(kind: str) -> None:
    weight = torch.tensor([0.0, 0.5, -2.0]).repeat_interleave(32)[None]
    error = (quantise(weight, kind).dequantise() - weight).abs().max()
    assert float(error) <= 2e-3


@pytest.mark.parametrize("kind", ["int8", "int4_minimum"])
def test_what_is_on_the_grid_stays(kind: str) -> None:
    once = quantise(noise(8, 64), kind).dequantise()
    torch.testing.assert_close(quantise(once, kind).dequantise(), once, rtol=0, atol=2e-3)


def test_rows_are_quantised_on_their_own() -> None:
    weight = noise(5000, 32)  # more than are quantised at one time
    whole, row = quantise(weight, "int4_minimum"), quantise(weight[4500:4501], "int4_minimum")
    assert torch.equal(whole[4500:4501].dequantise(), row.dequantise())


def test_neighbours_of_a_kind_are_merged() -> None:
    a, b = quantise(noise(2, 32), "int8"), quantise(noise(3, 32, 1), "int8")
    c = quantise(noise(4, 32, 2), "int4_minimum")
    merged = merge([a, b, c, a])
    assert [(some.kind, some.shape[0]) for some in merged] == [
        ("int8", 5),
        ("int4_minimum", 4),
        ("int8", 2),
    ]
    both = concatenate([a, b]).dequantise()
    assert torch.equal(both, torch.cat([a.dequantise(), b.dequantise()]))


@pytest.mark.parametrize("kind", ["int8", "int4_minimum"])
def test_rounding_while_reading_gives_the_same_blocks(kind: str) -> None:
    weight = torch.randn(70, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    rounding, whole = Rounding(weight, kind), quantise(weight, kind)
    assert rounding.shape == whole.shape
    for first in range(0, 70, 32):
        some = slice(first, first + 32)
        for (_, ours), (_, theirs) in zip(rounding[some].parts(), whole[some].parts(), strict=True):
            assert torch.equal(ours, theirs)
    expected = whole.dequantise().bfloat16()
    rounding.into(weight)
    assert torch.equal(weight, expected)


@pytest.mark.parametrize("kind", ["int8", "int4_minimum"])
def test_unread_rows_are_read_when_they_are_asked_for(kind: str) -> None:
    asked, whole = list[slice](), quantise(noise(12, 64), kind)

    def read(rows: slice) -> BlockQuantized:
        asked.append(rows)
        return whole[rows]

    unread = UnreadWeight(kind, whole.shape, read)
    both = merge([unread, quantise(noise(5, 64, 1), kind)])[0]
    assert unread.shape == (12, 64) and both.shape == (17, 64) and not asked
    expected = torch.cat([whole.dequantise(), quantise(noise(5, 64, 1), kind).dequantise()])
    for first, last in ((2, 5), (10, 14), (13, 17), (16, 30), (0, 17)):
        assert torch.equal(both[first:last].dequantise(), expected[first:last])
    assert [rows.indices(12)[:2] for rows in asked] == [(2, 5), (10, 12), (0, 12)]
    assert torch.equal(unread.codes, whole.codes) and (unread.minima is None) == (kind == "int8")
    assert torch.equal(unread[torch.tensor([3, 1])].scales, whole.scales[[3, 1]])
    assert [name for name, _ in unread.parts()] == [name for name, _ in whole.parts()]
    assert torch.equal(unread.dequantise(), expected[:12])
