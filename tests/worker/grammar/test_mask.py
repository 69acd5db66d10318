"""A mask forbids, in its own rows alone."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.grammar.mask import Mask


def test_forbids_in_its_rows() -> None:
    logits = torch.arange(12.0).view(3, 4)
    before = logits.clone()
    allowed = np.array([[True, False, False, True], [False, True, True, True]])
    Mask(np.array([2, 0]), allowed).apply(logits)
    assert torch.equal(logits[1], before[1])
    assert logits[2].tolist() == [8.0, -np.inf, -np.inf, 11.0]
    assert logits[0].tolist() == [-np.inf, 1.0, 2.0, 3.0]
