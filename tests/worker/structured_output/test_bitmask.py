"""A mask forbids, in its own rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.structured_output import bitmask
from baton_worker.structured_output.bitmask import Mask


def test_forbids_in_its_rows() -> None:
    logits = torch.arange(12.0).view(3, 4)
    before = logits.clone()
    # Bits beyond the vocabulary mean nothing.
    Mask(np.array([2, 0]), np.array([[0b11111001], [0b1110]], np.uint8)).apply(logits)
    assert torch.equal(logits[1], before[1])
    assert logits[2].tolist() == [8.0, -np.inf, -np.inf, 11.0]
    assert logits[0].tolist() == [-np.inf, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (5, 8), (130, 37), (64, 1000)])
def test_equals_a_fill(rows: int, vocab: int) -> None:
    random = np.random.default_rng(rows)
    logits = torch.randn(rows + 3, vocab)
    logits[0, 0] = -torch.inf
    which = random.permutation(rows + 3)[:rows]
    allowed = random.random((rows, vocab)) < 0.3
    wanted = logits.clone()
    wanted[which] = wanted[which].masked_fill(torch.from_numpy(~allowed), -torch.inf)
    Mask(which, np.packbits(allowed, axis=1, bitorder="little")).apply(logits)
    assert torch.equal(logits, wanted)
    assert bitmask._ROWS == 64
