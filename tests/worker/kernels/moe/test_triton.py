"""Where fused experts run."""

from __future__ import annotations

from dataclasses import replace

import torch

from baton_worker.kernels.moe.triton import TritonExperts
from tests.support.worker.expert_layers import experts


def test_refuses_what_it_cannot_run() -> None:
    layer = experts(2, hidden=8, size=8)
    assert TritonExperts.refuses(layer) == "it needs a GPU"
    half = replace(layer, down=torch.zeros(2, 8, 8, dtype=torch.float64, device="meta"))
    assert TritonExperts.refuses(half) == "it needs a GPU"
