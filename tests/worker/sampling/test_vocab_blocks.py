"""Two-level sums against numpy, and independent of the company a row keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.sampling.vocab_blocks import BLOCK, blocks, mass


@pytest.mark.parametrize("width", [1, BLOCK - 1, BLOCK, BLOCK + 1, 49_152])
def test_the_mass_is_the_sum(width: int) -> None:
    weights = torch.rand(3, width, generator=torch.Generator().manual_seed(width))
    expected = weights.double().numpy().sum(1)
    np.testing.assert_allclose(mass(weights).numpy(), expected, rtol=1e-6)


def test_padding_adds_nothing_and_a_whole_number_of_blocks_is_a_view() -> None:
    odd, even = torch.ones(2, BLOCK + 1), torch.ones(2, 2 * BLOCK)
    assert blocks(odd).shape == (2, 2, BLOCK) and blocks(odd).sum() == 2 * (BLOCK + 1)
    assert blocks(even).data_ptr() == even.data_ptr()


def test_a_row_sums_the_same_alone_and_in_a_batch() -> None:
    weights = torch.rand(16, 50_000, generator=torch.Generator().manual_seed(0))
    together = mass(weights)
    assert all(torch.equal(mass(weights[i : i + 1])[0], together[i]) for i in range(16))
