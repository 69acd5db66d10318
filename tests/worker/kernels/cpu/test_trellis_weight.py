"""Trellis-coded weights: their rows, columns and blocks."""

from __future__ import annotations

import pytest
import torch

from tests.support.trellis_codes import exl3, weight_of


@pytest.mark.row("F03.31")
def test_parts_of_a_weight() -> None:
    parts, meant = exl3(3, left="su", right="sv")(torch.randn(256, 256))
    weight = weight_of("mul1", parts)
    assert torch.allclose(weight.dequantise(), meant, atol=1e-5)
    some = torch.tensor([200, 3, 130])
    for rows in (slice(100, 140), some):
        assert torch.allclose(weight[rows].dequantise(), meant[rows], atol=1e-5)
    assert torch.allclose(weight[some][1:].dequantise(), meant[some[1:]], atol=1e-5)
    wide = weight[250:].padded(2).to(torch.device("cpu"))
    assert wide.shape == (8, 256) and not wide.dequantise()[6:].any()
    # A part of the columns is rotated by itself.
    assert torch.allclose(weight.columns(128, 128).dequantise(), meant[:, 128:], atol=1e-5)
    assert weight.column_multiple == 128 and weight.blocks() is None
    assert [weight[rows].first for rows in (slice(0, 256), slice(128, 256))] == [0, 128]
    assert {w.first for w in (weight[1:129], weight[:100], weight[some], wide)} == {None}
