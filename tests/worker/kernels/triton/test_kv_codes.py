"""Codes of one byte inside of a kernel, all 256 of them."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.kv_codes import CODES, KVCodes


@pytest.mark.parametrize("codes", CODES.values(), ids=str)
def test_every_code_is_the_number_that_torch_reads(codes: KVCodes, device: torch.device) -> None:
    from tests.fakes.triton_kernels import decode, encode

    given = torch.arange(256, dtype=torch.uint8, device=device)
    numbers, back = torch.zeros(256, device=device), torch.zeros_like(given)
    decode[1,](given, numbers, CODES=codes.number)
    encode[1,](numbers, back, CODES=codes.number)
    expected = given.view(codes.dtype).float()
    real = expected.isfinite()
    assert torch.equal(numbers[real], expected[real]) and real.sum() >= 254
    assert torch.equal(back[real], given[real])


@pytest.mark.parametrize("codes", CODES.values(), ids=str)
def test_numbers_between_codes_are_rounded_as_torch_rounds(
    codes: KVCodes, device: torch.device
) -> None:
    from tests.fakes.triton_kernels import encode

    x = torch.randn(4096, generator=torch.Generator().manual_seed(0)).to(device)
    x = torch.cat((x * 100, x * 1e-2, torch.arange(4096, device=device) / 64.0 - 32))
    x = x.clamp(-codes.most, codes.most)
    out = torch.zeros(len(x), dtype=torch.uint8, device=device)
    encode[len(x) // 256,](x, out, CODES=codes.number)
    rounded = x if codes.dtype.is_floating_point else x.round()
    assert torch.equal(out, rounded.to(codes.dtype).view(torch.uint8))
