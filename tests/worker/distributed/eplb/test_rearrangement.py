"""What has to move; that it arrives is tested with the balancer."""

from __future__ import annotations

from collections import Counter

import pytest

from baton_worker.distributed.eplb.rearrangement import Move, moves


@pytest.mark.row("F14.13")
def test_only_what_is_not_there_moves_and_sources_take_turns() -> None:
    assert moves(((0, 1), (2, 3)), ((0, 3), (2, 1))) == [Move(3, 1, 0, 1), Move(1, 0, 1, 1)]
    assert moves(((0, 1), (2, 3)), ((0, 1), (2, 3))) == []
    before = ((0, 1), (0, 2), (3, 4), (5, 6))
    found = moves(before, ((0, 1), (0, 2), (3, 0), (0, 6)))
    assert Counter(move.source for move in found) == {0: 1, 1: 1}
