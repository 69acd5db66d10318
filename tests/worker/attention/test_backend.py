"""Steps that only some layers understand."""

from __future__ import annotations

from dataclasses import replace

import torch

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backend import fits
from baton_worker.attention.tree_mask import TreeMask

CPU = torch.device("cpu")


def test_ranges_and_trees_fit_calls_that_ask_for_them() -> None:
    call = AttentionSpec(4, 2, 8, 1.0, None, torch.float32, CPU)
    batch = AttentionBatch.build([2], [3], [[0, 1]], 4, CPU)
    ranges = replace(batch, ranges=((0, 2),))
    trees = replace(batch, trees=TreeMask.build((2,), [[-1, -1]], CPU))
    assert fits(batch, call)
    assert not fits(ranges, call) and fits(ranges, replace(call, partial=True))
    assert not fits(trees, call) and fits(trees, replace(call, tree=True))
