"""Blocks around a smaller plane; the numbers are those of the test of published layouts."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.projectors.abstractor import Abstractor

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_a_part_becomes_a_smaller_plane_whatever_is_beside_it() -> None:
    pooled = Abstractor(spec.Abstractor("a", 8, 12, 1, 3, pooled=2), CPU)
    merged = Abstractor(spec.Abstractor("a", 8, 12, 1, 0, merge=2), CPU)
    assert (pooled.after((6, 5)), merged.after((6, 4))) == ((2, 2), (3, 2))
    for step in (pooled, merged):
        for parameter in step.parameters():
            parameter.uniform_(-0.5, 0.5)
        x, sizes = torch.randn(24 + 8, 8), [(6, 4), (2, 4)]
        found = step(x, sizes)
        assert found.shape == (sum(rows * columns for rows, columns in map(step.after, sizes)), 12)
        assert torch.equal(found[-len(step(x[24:], sizes[1:])) :], step(x[24:], sizes[1:]))
    names = {
        name
        for module in merged.modules()
        if hasattr(module, "weight_targets")
        for name, _ in module.weight_targets()
    }
    assert {"a.net.0.b1.conv2.conv.weight", "a.net.2.b1.downsample.bn.bias"} <= names
