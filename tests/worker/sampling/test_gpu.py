"""A GPU samples the tokens that the CPU samples, given the same logits and seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.sampling import (
    PARAMETERS,
    Adjustments,
    Entries,
    History,
    Sampler,
    TokenRule,
    TokenRules,
    fill,
)
from baton_worker.structured_output.bitmask import Mask

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


@pytest.mark.parametrize("kinds", [MIXED[:-1], MIXED], ids=["in triton", "locally typical"])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_cpu(kinds: list[Sampling], masked: bool) -> None:
    """A batch with a locally typical row is sampled by torch, also on a GPU; any other in Triton,
    where that is installed."""
    parameters = np.zeros(ROWS, PARAMETERS)
    for row in range(ROWS):
        given = {f: getattr(kinds[row % len(kinds)], f) for f in Sampling.__struct_fields__}
        fill(parameters[row], Sampling(**given | {"seed": row * 7919 + (row << 33)}))
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    bits = np.random.default_rng(0).integers(0, 256, (ROWS, VOCAB // 8), np.uint8)
    index = np.arange(ROWS)
    found = []
    for device in ("cpu", "cuda"):
        there = logits.to(device, copy=True)
        if masked:
            Mask(index[::3], bits[::3]).apply(there)
        found.append(Sampler().sample(there, parameters, index))
    assert found[1].dtype == np.int32 and np.array_equal(*found)


def test_what_is_done_to_logits_equals_the_cpu() -> None:
    """Bias, penalties and rules, as a batch of a worker has them."""
    history = np.random.default_rng(1).integers(0, VOCAB, (ROWS, 40))
    sampled = (np.arange(40) >= 10).astype(np.float32) * np.ones((ROWS, 1), np.float32)
    parameters = np.zeros(ROWS, PARAMETERS)
    for row in range(ROWS):
        fill(
            parameters[row],
            Sampling(1, seed=row, repetition_penalty=1.2, presence_penalty=0.3, top_p=0.95),
        )
    index = np.arange(ROWS)
    biased = Entries(index, index % VOCAB, np.linspace(-4, 4, ROWS, dtype=np.float32))
    rule = TokenRule.of(
        Sampling(1, allowed_ids=tuple(range(0, VOCAB, 2)), bad_words=((4,), (7, 8)))
    )
    assert rule is not None
    adjusted = Adjustments(
        bias=biased,
        history=History(index[::2], history[::2], sampled[::2], parameters[::2]),
        rules=TokenRules([0, 3], [rule, rule], [history[0].astype(np.int32), history[3, :1]]),
    )
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    found, chosen = [], []
    for device in ("cpu", "cuda"):
        there = logits.to(device, copy=True)
        adjusted.apply(there)
        found.append(there.cpu().clone())
        chosen.append(Sampler().sample(there, parameters, index))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)
    assert np.array_equal(*chosen)
