"""The embedding table."""

from __future__ import annotations

import torch

from baton_worker.layers.embedding import Embedding
from baton_worker.layers.layer import Site


def test_looks_up_rows(site: Site) -> None:
    layer = Embedding(5, 3, site)
    ((name, table),) = layer.destinations()
    table.copy_(torch.arange(15.0).view(5, 3))
    assert name == "embedding.weight"
    assert layer(torch.tensor([4, 0])).tolist() == [[12.0, 13.0, 14.0], [0.0, 1.0, 2.0]]
