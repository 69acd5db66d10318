"""The gated feed-forward against its formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.mlp import ACTIVATIONS, Glu, Mlp


def test_gates(context: BuildContext) -> None:
    layer = Glu(spec.Glu(6), 4, context)
    weights = {}
    for part in layer.modules():
        if isinstance(part, Layer):
            for name, rows in part.weight_targets():
                weights[name] = rows.copy_(torch.randn(rows.shape))
    x, stream = torch.randn(3, 4), torch.randn(3, 4)
    gated = F.silu(x @ weights["gate.weight"].T) * (x @ weights["up.weight"].T)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x, stream), stream + gated @ weights["down.weight"].T)


def test_unknown_activation_is_refused_with_the_known_ones(context: BuildContext) -> None:
    with pytest.raises(ModelError, match=r"'sine'.*silu"):
        Glu(spec.Glu(6, activation="sine"), 4, context)


def test_plain_feed_forward_has_no_gate(context: BuildContext) -> None:
    layer = Mlp(spec.Mlp(6, activation="relu2", bias=True), 4, context)
    weights = {}
    for part in layer.modules():
        if isinstance(part, Layer):
            for name, rows in part.weight_targets():
                weights[name] = rows.copy_(torch.randn(rows.shape))
    x, stream = torch.randn(3, 4), torch.randn(3, 4)
    inner = F.relu(x @ weights["up.weight"].T + weights["up.bias"]).square()
    expected = stream + inner @ weights["down.weight"].T + weights["down.bias"]
    with torch.inference_mode():
        torch.testing.assert_close(layer(x, stream), expected)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_match_transformers(name: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-4, 4, 101)
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), rtol=1e-5, atol=1e-6)
