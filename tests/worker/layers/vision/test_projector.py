"""Steps from states to embeddings."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.projector import (
    Activated,
    Convolution,
    Merge,
    Projector,
    Standardized,
)

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_ways_to_merge() -> None:
    x = torch.arange(8.0).view(4, 2)
    assert Merge(spec.Merge(2), CPU)(x).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert Merge(spec.Merge(2, "channels"), CPU)(x).tolist() == [[0, 2, 4, 6, 1, 3, 5, 7]]
    assert Merge(spec.Merge(2, "mean"), CPU)(x).tolist() == [[3, 4]]


def test_a_convolution_is_that_of_torch() -> None:
    layer = Convolution(spec.Convolution("c", 3, 5, 2), CPU)
    for _, target in layer.weight_targets():
        target.copy_(torch.randn(target.shape))
    weight, bias = (target for _, target in layer.weight_targets())
    x = torch.randn(4, 3)
    expected = torch.conv2d(x.T.reshape(1, 3, 2, 2), weight, bias).flatten()
    assert torch.allclose(layer(x)[0], expected, atol=1e-5)


def test_standardized_states_are_multiplied_first() -> None:
    layer = Standardized(spec.Standardized(3.0, 2, "bias", "scale"), CPU)
    for (name, target), values in zip(
        [*layer.bias.weight_targets(), *layer.scale.weight_targets()],
        ([1.0, 2.0], [10.0, -1.0]),
        strict=True,
    ):
        assert name in ("bias", "scale")
        target.copy_(torch.tensor(values))
    assert layer(torch.tensor([[2.0, 1.0]])).tolist() == [[50.0, -1.0]]
    assert Standardized(spec.Standardized(3.0, 2), CPU)(torch.ones(1, 2)).tolist() == [[3.0, 3.0]]


def test_the_second_half_is_the_gate_and_steps_run_in_order() -> None:
    found = Activated(spec.Activated("relu", gated=True), CPU)(
        torch.tensor([[2.0, 3.0, -1.0, 4.0]])
    )
    assert found.tolist() == [[0, 12]]
    steps = Projector([spec.Merge(2, "mean"), spec.Activated("relu")], CPU)
    assert steps(torch.tensor([[-1.0], [-3.0], [-1.0], [-3.0]]), [(2, 2)]).tolist() == [[0]]
    assert steps.after((4, 6)) == (2, 3)
