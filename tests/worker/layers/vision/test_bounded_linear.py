"""Projections with bounds of their inputs and outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.vision.bounded_linear import BoundedGlu, BoundedLinear

CPU = BuildContext(torch.device("cpu"), torch.float32)
BOUNDS = {"input_min": -0.5, "input_max": 0.4, "output_min": -0.3, "output_max": 0.6}


def filled(layer: BoundedLinear | BoundedGlu) -> dict[str, Tensor]:
    """Fill a layer; returns its tensors by name."""
    made = {}
    for module in layer.modules():
        if isinstance(module, Layer):
            for name, target in module.weight_targets():
                bound = BOUNDS.get(name.rpartition(".")[2])
                target.normal_() if bound is None else target.fill_(bound)
                made[name] = target
    return made


def bounded(x: Tensor, made: dict[str, Tensor], role: str) -> Tensor:
    return (x.clamp(-0.5, 0.4) @ made[f"{role}.weight"].T).clamp(-0.3, 0.6)


def test_each_part_has_bounds_of_its_own() -> None:
    layer = BoundedLinear(4, {"query": 3, "key": 2}, CPU)
    made, x = filled(layer), torch.randn(5, 4)
    assert len(made) == 2 * 5
    made["key.output_max"].fill_(0.1)
    key = bounded(x, made, "key").clamp(max=0.1)
    expected = torch.cat((bounded(x, made, "query"), key), dim=-1)
    assert torch.allclose(layer(x), expected, atol=1e-6)
    more = torch.randn(5, 5)
    assert torch.allclose(layer(x, more), expected + more, atol=1e-6)


def test_a_gated_feed_forward() -> None:
    layer = BoundedGlu(spec.BoundedGlu(6, "silu"), 4, CPU)
    made, x = filled(layer), torch.randn(5, 4)
    gate, up = (bounded(x, made, role) for role in ("gate", "up"))
    expected = bounded(torch.nn.functional.silu(gate) * up, made, "down") + x
    assert torch.allclose(layer(x, x), expected, atol=1e-6)
