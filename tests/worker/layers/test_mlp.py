"""The gated feed-forward against its formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton.errors import ModelError
from baton_worker.layers.layer import Layer, Site
from baton_worker.layers.mlp import Glu
from baton_worker.models import spec


def test_gates(site: Site) -> None:
    layer = Glu(spec.Glu(6), 4, site)
    weights = {}
    for part in layer.modules():
        if isinstance(part, Layer):
            for name, rows in part.destinations():
                weights[name] = rows.copy_(torch.randn(rows.shape))
    x, stream = torch.randn(3, 4), torch.randn(3, 4)
    gated = F.silu(x @ weights["gate.weight"].T) * (x @ weights["up.weight"].T)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x, stream), stream + gated @ weights["down.weight"].T)


def test_unknown_activation_is_refused_with_the_known_ones(site: Site) -> None:
    with pytest.raises(ModelError, match=r"'sine'.*silu"):
        Glu(spec.Glu(6, activation="sine"), 4, site)
