"""A learned vector under a name of its own."""

from __future__ import annotations

import torch

from baton_worker.layers.layer import Site
from baton_worker.layers.learned import Learned


def test_its_name_has_no_suffix() -> None:
    site = Site(torch.device("cpu"), torch.bfloat16, {"probe": "head.probe"}.__getitem__)
    layer = Learned((1, 2, 3), "probe", site)
    [(name, place)] = layer.destinations()
    place.copy_(torch.arange(6).view(1, 2, 3))
    assert name == "head.probe" and layer().dtype is torch.bfloat16
    assert layer().flatten().tolist() == [0, 1, 2, 3, 4, 5]
