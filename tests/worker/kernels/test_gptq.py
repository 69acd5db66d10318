"""What words of GPTQ mean, and that blocks for the CPU are the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.gptq import BITS, GptqWeight, pack, unpack
from tests.support import quantized_checkpoints


def some_codes(bits: int, *shape: int) -> Tensor:
    return torch.randint(1 << bits, shape, generator=torch.Generator().manual_seed(bits)).byte()


def weight(
    bits: int = 4, group: int = 32, *, act_order: bool = False, symmetric: bool = False
) -> GptqWeight:
    """A weight [24, 96] with zeros as they are."""
    values = torch.randn(24, 96, generator=torch.Generator().manual_seed(bits))
    method = quantized_checkpoints.gptq(bits, group, act_order=act_order, symmetric=symmetric)
    stored, _ = method(torch.cat([values, torch.zeros(8, 96)]))
    zeros = unpack(stored["qzeros"].view(torch.uint8), bits).to(torch.int16) + 1
    return GptqWeight(bits, stored["qweight"], stored["scales"], zeros, stored["g_idx"])


@pytest.mark.row("F03.07")
@pytest.mark.parametrize("bits", BITS)
def test_codes_are_one_stream_of_bits_and_repacking_them_round_trips(bits: int) -> None:
    codes = some_codes(bits, 3, 64)
    stream = pack(codes, bits)
    assert torch.equal(stream.view(torch.int32), quantized_checkpoints.by_row(codes, bits))
    assert torch.equal(unpack(stream, bits), codes)
    made = weight(bits)
    again = GptqWeight.of(made.codes(), bits, made.scales, made.zeros)
    for field in ("words", "scales", "zeros", "groups"):
        assert torch.equal(getattr(again, field), getattr(made, field))


@pytest.mark.row("F21.07")
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("act_order", [False, True])
def test_a_weight_is_its_scale_times_what_its_code_is_above_zero(
    bits: int, act_order: bool
) -> None:
    made = weight(bits, act_order=act_order)
    floats, codes = made.dequantise(), made.codes()
    for n in range(0, 24, 5):
        for k in range(0, 96, 7):
            g = int(made.groups[k])
            code = int(codes[n, k]) - int(made.zeros[g, n])
            assert floats[n, k] == float(made.scales[g, n]) * code


@pytest.mark.parametrize(
    ("bits", "group", "symmetric", "kind"),
    [
        (2, 32, False, "int4"),
        (3, 32, True, "int4"),
        (4, 96, True, "int4"),
        (4, 32, False, "int4_offset"),
        (8, 32, True, "int8"),
    ],
)
def test_blocks_are_the_same_numbers(bits: int, group: int, symmetric: bool, kind: str) -> None:
    made = weight(bits, group, symmetric=symmetric)
    blocks = made.blocks()
    assert blocks is not None and blocks.kind == kind
    assert torch.equal(blocks.dequantise(), made.dequantise())


def test_scales_that_are_no_half_precision_numbers_are_kept_beside_bytes() -> None:
    fine = weight(4, symmetric=True)
    for scales in (fine.scales.float() / 3, fine.scales.bfloat16() * 1e6):
        made = replace(fine, scales=scales)
        blocks = made.blocks()
        assert blocks is not None and blocks.kind == "int8_float"
        assert torch.equal(blocks.dequantise(), made.dequantise())


def test_there_are_none_of_other_groups_or_codes() -> None:
    assert weight(4, 16).blocks() is None
    assert weight(4, act_order=True).blocks() is None
    wide = weight(8)
    assert replace(wide, zeros=torch.zeros_like(wide.zeros)).blocks() is None


@pytest.mark.parametrize("field", ["words", "scales", "zeros", "groups"])
def test_tensors_that_do_not_fit_are_an_error(field: str) -> None:
    made = weight()
    assert made.checked() is made
    bad = -made.groups if field == "groups" else getattr(made, field)[:-1]
    with pytest.raises(ValueError, match="scales"):
        replace(made, **{field: bad}).checked()
