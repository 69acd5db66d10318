"""Convolutions over pages against their twin in torch."""

from __future__ import annotations

import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.convolution import (
    Activation,
    Before,
    Places,
    PlainConvolution,
    Weights,
)
from baton_worker.layers import invariant
from baton_worker.layers.ssm.short_conv import Earlier

SILU = Activation(invariant.SILU, silu=True)


@pytest.mark.row("F07.03", "F07.12")
@pytest.mark.parametrize(
    ("channels", "first", "tail", "activation", "dtype"),
    [(6, 6, 0, Activation(), torch.float32), (40, 7, 3, SILU, torch.bfloat16)],
)
def test_texts_in_chunks_are_convolved_and_kept_as_by_the_twin(
    channels: int,
    first: int,
    tail: int,
    activation: Activation,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """In pages that are parts of something larger, with rows that are parts of wider ones; what is
    missing is not read."""
    from baton_worker.kernels.triton.recurrent.convolution import TritonConvolution

    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3 + 1, channels, generator=generator).to(device)
    weights = Weights(weights[:3], weights[3] if tail else None)
    x = torch.randn(22, channels + tail + 5, generator=generator).to(device, dtype)
    width, at = channels + 4 + channels - first + tail, channels + 4
    made = []
    for kind in (PlainConvolution, TritonConvolution):
        memory = torch.full((8, 4 * width + 9), 7.0, dtype=dtype, device=device)
        memory[2, 9:] = float("nan")  # The first page of the second text.
        pages = memory[:, 9:].unflatten(1, (4, 1, 1, width))
        kernel, parts = kind(weights, Places(first, tail, at), activation), []
        for counts, starts, begin in (([5, 1], [3, 0], 0), ([15, 1], [8, 1], 6)):
            tables = [[7, 1, 5, 0, 3, 6], [2]]
            batch = AttentionBatch.build(counts, starts, tables, 4, device)
            earlier = Earlier.of(batch, 3)
            before = Before(batch.slot_mapping, earlier.slots, earlier.missing)
            some = x[begin : begin + sum(counts), 2 : 2 + channels + tail]
            parts.append(kernel(some, before, pages))
        made.append((torch.cat(parts), memory))
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for found, expected in zip(made[1], made[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
