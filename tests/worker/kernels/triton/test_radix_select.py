"""The radix select of a sampler against a sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch

ROWS, VOCAB, TILE = 4, 300, 128


@pytest.mark.row("F21.04")
def test_the_least_weight_that_is_kept(device: torch.device) -> None:
    """Of as many as are wanted, or of those that add up to what is; tiles of a row share it."""
    from baton_worker.kernels.triton import radix_select
    from tests.fakes.triton_kernels import first_digits, selected

    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(ROWS, VOCAB, generator=generator).mul(8).sub(30).exp().clamp(max=1)
    weights[0, ::3], weights[1], weights[2, 7:] = 0, 0.25, 0
    ordered = np.sort(weights.numpy(), 1)[:, ::-1]
    sums = ordered.astype(np.float64).cumsum(1)
    unit, digits = 2.0**44, radix_select.DIGITS
    # A share that is reached exactly, one above it, and all there is; row 3 selects nothing.
    for counted, wanted in ((1, [7, 90, 3, 0]), (1, [1, 300, 299, 0]), (0, [0.5, 0.3, 1.0, 0])):
        asked = np.array(wanted) if counted else np.ceil(np.array(wanted) * sums[:, -1] * unit)
        histograms = torch.zeros((digits, ROWS, radix_select.BINS), dtype=torch.int64).to(device)
        prefix = torch.zeros((digits, 32), dtype=torch.int32).to(device)
        left = torch.zeros((digits, 32), dtype=torch.int64).to(device)
        left[0, :ROWS] = torch.from_numpy(asked.astype(np.int64)).to(device)
        given, tiles, found = weights.to(device), -(-VOCAB // TILE), torch.zeros(ROWS).to(device)
        sizes = {"ROWS": ROWS, "TILE": TILE}
        first_digits[tiles,](
            *(given, histograms[0], ROWS, VOCAB, radix_select.FIRST, counted), **sizes
        )
        for digit in range(digits - 1):
            state = (part[at] for at in (digit, digit + 1) for part in (histograms, prefix, left))
            shift = radix_select.FIRST - 10 * (digit + 1)
            radix_select.narrow[1, tiles](given, *state, ROWS, VOCAB, shift, counted, **sizes)
        selected[1,](histograms[-1], prefix[-1], left[-1], found, ROWS, ROWS=ROWS)
        reached = np.arange(1, VOCAB + 1) if counted else np.floor(sums * unit)
        for row in range(ROWS - 1):
            place = int((reached[row] if not counted else reached).searchsorted(asked[row]))
            assert float(found[row]) == ordered[row, min(place, VOCAB - 1)], (wanted, row)
        assert float(found[-1]) == 0.0
