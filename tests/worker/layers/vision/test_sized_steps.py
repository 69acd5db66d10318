"""Steps that know the sizes of parts."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.sized_steps import Bracket, RowEnds, Unfold

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_windows_at_the_edge_are_filled_up_with_zeros() -> None:
    step = Unfold(spec.Unfold(2), CPU)
    assert step.after((3, 2)) == (2, 1)
    found = step(torch.arange(1.0, 7.0)[:, None], [(3, 2)])
    assert found.tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]


def test_vectors_after_rows_and_at_both_ends() -> None:
    rows, ends = RowEnds(spec.RowEnds("r", 1), CPU), Bracket(spec.Bracket("b", "e", 1), CPU)
    for layer, number in ((rows.end, 7.0), (ends.begin, 8.0), (ends.end, 9.0)):
        layer.value.fill_(number)
    sizes = [(2, 2), (1, 1)]
    found = rows(torch.arange(5.0)[:, None], sizes)
    assert found[:, 0].tolist() == [0, 1, 7, 2, 3, 7, 4, 7]
    sizes = [rows.after(size) for size in sizes]
    assert ends(found, sizes)[:, 0].tolist() == [8, 0, 1, 7, 2, 3, 7, 9, 8, 4, 7, 9]
    assert [ends.after(size) for size in sizes] == [(1, 8), (1, 4)]


def test_a_window_has_channel_after_channel_or_state_after_state() -> None:
    x = torch.arange(8.0).view(4, 2)
    by_channel, by_state = (Unfold(spec.Unfold(2, how), CPU) for how in ("channels", "concat"))
    assert by_channel(x, [(2, 2)]).tolist() == [[0, 2, 4, 6, 1, 3, 5, 7]]
    assert by_state(x, [(2, 2)]).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
