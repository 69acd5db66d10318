"""A GPU samples the tokens that the CPU samples, given the same logits and seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.grammar.mask import Mask
from baton_worker.sampling import PARAMETERS, fill, sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]
ROWS, VOCAB = 512, 3000
MIXED = [
    Sampling(1, temperature=0.0),
    Sampling(1),
    Sampling(1, temperature=0.6, top_p=0.9),
    Sampling(1, temperature=1.7, top_k=40, min_p=0.02),
    Sampling(1, typical_p=0.8),
]


@pytest.mark.row("F09.12")
def test_equals_the_cpu() -> None:
    parameters = np.zeros(ROWS, PARAMETERS)
    for row in range(ROWS):
        given = {f: getattr(MIXED[row % len(MIXED)], f) for f in Sampling.__struct_fields__}
        fill(parameters[row], Sampling(**given | {"seed": row * 7919}))
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    bits = np.random.default_rng(0).integers(0, 256, (ROWS, VOCAB // 8), np.uint8)
    index = np.arange(ROWS)
    found = []
    for device in ("cpu", "cuda"):
        there = logits.to(device, copy=True)
        Mask(index[::3], bits[::3]).apply(there)
        found.append(sample(there, parameters, index))
    assert np.array_equal(*found)
