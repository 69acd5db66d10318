"""Steps that know the sizes of parts."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.sized_steps import Unfold

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_windows_at_the_edge_are_filled_up_with_zeros() -> None:
    step = Unfold(spec.Unfold(2), CPU)
    assert step.after((3, 2)) == (2, 1)
    found = step(torch.arange(1.0, 7.0)[:, None], [(3, 2)])
    assert found.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
