"""Marks between tiles."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.marks import COLUMN, END, GRID, ROW, START, Marks, order
from baton_worker.layers.vision.projector import Codebook


def test_marks_between_columns_and_rows() -> None:
    assert order((1, 1, 1)) == [START, None, GRID, END]
    expected = [START, None, GRID, None, COLUMN, None, ROW, None, COLUMN, None, END]
    assert order((1, 2, 2)) == expected
    context = BuildContext(torch.device("cpu"), torch.float32)
    marks = Marks(spec.Marks(), Codebook(spec.Codebook("c", 9, 2, reserved=5), context))
    assert marks.num_tokens(5 * 9, (1, 2, 2)) == 45 + 6
    assert marks.num_tokens(9, (1, 1, 1)) == 9 + 3
