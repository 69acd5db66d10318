"""Steps over states in time."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.audio.frame_steps import FramePool, FrameStack
from baton_worker.layers.build_context import BuildContext

SITE = BuildContext(torch.device("cpu"), torch.float32)


def test_states_of_a_chunk_stay_among_themselves() -> None:
    x, sizes = torch.arange(14.0).view(7, 2), [(1, 5), (1, 2)]
    padded = FrameStack(spec.FrameStack(4, padded=True), SITE)
    assert padded(x, sizes).tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 0, 0, 0, 0, 0, 0],
        [10, 11, 12, 13, 0, 0, 0, 0],
    ]
    assert [padded.after(size) for size in sizes] == [(1, 2), (1, 1)]
    cut = FrameStack(spec.FrameStack(2), SITE)
    assert cut(x, sizes).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [10, 11, 12, 13]]
    mean = FramePool(spec.FramePool(2), SITE)
    assert mean(x, sizes).tolist() == [[1, 2], [5, 6], [11, 12]]
    for step in (cut, mean):
        assert [step.after(size) for size in sizes] == [(1, 2), (1, 1)]
    assert [padded.after((1, 0)), cut.after((1, 1))] == [(1, 0), (1, 0)]
    assert len(cut(x[:1], [(1, 1)])) == 0 and len(mean(x[:1], [(1, 1)])) == 0
