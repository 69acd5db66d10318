"""Rows that become shorter, and a summary; the numbers are those of the test of Nemotron Parse."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.projectors.summary_neck import SummaryNeck

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_a_part_has_a_vector_for_each_window_of_a_row_and_one_more() -> None:
    neck = SummaryNeck(spec.SummaryNeck("n", 6, 8, leading=3, summaries=(0, 2), columns=2), CPU)
    for parameter in neck.parameters():
        parameter.uniform_(-0.5, 0.5)
    sizes = [(2, 5), (1, 2)]
    assert [neck.after(size) for size in sizes] == [(1, 5), (1, 2)]
    x = torch.randn(13 + 5, 6)
    found = neck(x, sizes)
    assert found.shape == (7, 8)
    assert torch.equal(found[5:], neck(x[13:], sizes[1:]))
    other = x.clone()
    other[1] = other[7] = 0.0  # A register, and the fifth patch of a row of two windows.
    assert torch.equal(neck(other, sizes), found)
