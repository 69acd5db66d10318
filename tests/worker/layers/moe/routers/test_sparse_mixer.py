"""SparseMixer-v2 against transformers."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.moe.routers.sparse_mixer import sparse_mixer


def test_equals_transformers_near_and_far() -> None:
    from transformers.models.phimoe.modeling_phimoe import sparsemixer

    generator = torch.Generator().manual_seed(0)
    for jitter in (0.01, 0.2, 1.0):
        settings = spec.Router(16, 2, kind="sparse_mixer", parameters=(("jitter", jitter),))
        logits = torch.randn(200, 16, generator=generator)
        weights, experts = sparsemixer(logits, jitter, False)
        ours = sparse_mixer(logits, settings, None)
        assert torch.equal(ours.experts, experts) and len(weights.unique()) > 1
        torch.testing.assert_close(ours.weights, weights)
