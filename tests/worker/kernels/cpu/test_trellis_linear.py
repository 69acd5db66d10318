"""Products with trellis-coded weights against the floats that they mean."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.cpu.trellis_linear import TrellisLinear, tiles
from baton_worker.kernels.linear import LinearSpec, choose, has_kernel
from tests.support.trellis_codes import exl3, weight_of

FLOATS = torch.empty(0)
CODEBOOKS = ("mul1", "mcg", "3inst")
pytestmark = [
    pytest.mark.row("F03.31"),
    pytest.mark.skipif(
        not has_kernel(weight_of("mul1", exl3(1)(torch.ones(128, 128))[0]), FLOATS),
        reason="no C++ compiler here",
    ),
]


def test_every_width_and_codebook_multiplies_what_it_means() -> None:
    x = torch.randn(6, 256, generator=torch.Generator().manual_seed(0))
    for bits in range(1, 9):
        codebook = CODEBOOKS[bits % 3]
        parts, meant = exl3(bits, codebook)(torch.randn(128, 256))
        weight, plain = weight_of(codebook, parts), x @ meant.T
        assert tiles(weight).nbytes == weight.trellis.nbytes
        kernel = choose(LinearSpec([weight], None, FLOATS))
        assert isinstance(kernel, TrellisLinear) and kernel.nbytes < meant.nbytes * (bits + 1) / 32
        together = kernel(x)
        torch.testing.assert_close(together, plain, rtol=1e-4, atol=1e-4 * float(plain.std()))
        assert all(torch.equal(kernel(x[row : row + 1])[0], together[row]) for row in range(6))
        assert torch.equal(kernel.sums(x), together)


def test_parts_bias_residual_dtypes_and_threads() -> None:
    made = [exl3(bits)(torch.randn(rows, 384)) for bits, rows in ((2, 256), (4, 128))]
    parts = [weight_of("mul1", stored) for stored, _ in made]
    meant = torch.cat([floats for _, floats in made])
    bias, wide = torch.linspace(-1, 1, 384), torch.randn(7, 500)
    for dtype, out, least in (
        (torch.float32, torch.float32, 1e-3),
        (torch.bfloat16, torch.bfloat16, 0.05),
        (torch.bfloat16, torch.float32, 0.02),
    ):
        like, x = torch.empty(0, dtype=dtype), wide.to(dtype)[:, 10:394]
        kernel = choose(LinearSpec(parts, bias, like, out_dtype=out))
        residual = x.flip(1)
        wanted = x.float() @ meant.T + bias + residual.float()
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        ours = kernel(x, residual)
        torch.set_num_threads(before)
        assert ours.dtype is out and torch.equal(kernel(x, residual), ours)
        assert float((ours.float() - wanted).abs().max() / wanted.std()) < least
    assert kernel(x.view(7, 1, 384)).shape == (7, 1, 384)


def test_what_it_has_no_code_for_is_refused() -> None:
    weight = weight_of("mul1", exl3(2)(torch.ones(256, 128))[0])
    assert TrellisLinear.refuses(weight, FLOATS) is None
    assert "Hadamard" in (TrellisLinear.refuses(weight[1:129], FLOATS) or "")
    assert "CPU" in (TrellisLinear.refuses(weight, torch.empty(0, device="meta")) or "")
    assert "bfloat16" in (TrellisLinear.refuses(weight, FLOATS.half()) or "")
    assert TrellisLinear.refuses(torch.ones(128, 128), FLOATS) is not None
    # Rows that it refuses become floats, as before.
    assert not has_kernel(weight[1:129], FLOATS)
