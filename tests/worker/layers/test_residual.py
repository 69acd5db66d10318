"""Sums that norms make, against sums of their own."""

from __future__ import annotations

import pytest
import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import norm
from baton_worker.layers.residual import ResidualSum, added, adds, normed

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_an_open_sum_is_the_sum_wherever_it_is_read(kind: str) -> None:
    x, more = torch.randn((2, 3, 8), generator=torch.Generator().manual_seed(0))
    layer = norm(spec.Norm(1e-5, kind=kind, scaled=False), 8, "norm", SITE)
    layer.process_weights_after_loading()
    assert not adds(layer)  # On a GPU it does: see tests/worker/models/test_triton.py.
    for stream in (ResidualSum(x, more), x + more):
        assert added(stream).equal(x + more)
        inputs, total = normed(stream, layer)
        assert inputs.equal(layer(x + more)) and total.equal(x + more)
