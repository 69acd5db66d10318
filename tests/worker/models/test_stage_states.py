"""What a stage hands on is listed in one order."""

from __future__ import annotations

import torch

from baton_worker.layers.forward_context import ForwardContext
from baton_worker.models.stage_states import StageStates


def test_the_stream_comes_first_and_what_layers_keep_follows() -> None:
    step = ForwardContext(torch.zeros(2, dtype=torch.int64), {}, {})
    hidden, skip, shared_kv, pending = (torch.full((2, 3), float(number)) for number in range(4))
    step.shared_kv.append(shared_kv)
    step.pending.append(pending)
    groups = StageStates(hidden, [skip]).groups(step)
    assert [[tensor[0, 0].item() for tensor in group] for group in groups] == [
        [0.0], [1.0], [2.0], [3.0], [],
    ]  # fmt: skip
