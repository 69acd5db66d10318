"""The norm against its formula."""

from __future__ import annotations

import torch

from baton_worker.layers.layer import Site
from baton_worker.layers.norm import RmsNorm
from baton_worker.models import spec


def test_divides_by_the_root_mean_square(site: Site) -> None:
    norm = RmsNorm(spec.Norm(eps=0.5), 6, "norm", site)
    ((name, weight),) = norm.destinations()
    assert name == "norm.weight"
    weight.copy_(torch.randn(6))
    x = torch.randn(2, 3, 6)
    expected = x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt() * weight
    torch.testing.assert_close(norm(x), expected)
