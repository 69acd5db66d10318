"""Rows whose new tokens are a tree."""

from __future__ import annotations

import numpy as np

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.tree_rows import at_depth, depths, path_offsets


def test_positions_and_paths_of_a_tree_beside_a_chain() -> None:
    tree = np.array([-1, 0, 0, 1, 2, 4])
    assert depths(tree).tolist() == [0, 1, 1, 2, 2, 3]
    slots = np.array([3, 5])
    rows = BatchRows(slots, np.array([10, 20]), np.array([2, 6]), np.ones(2, np.bool_))
    positions = np.array([10, 11, 20, 21, 22, 23, 24, 25])
    assert at_depth({}, rows, positions) is positions
    found = at_depth({5: tree}, rows, positions)
    assert found.tolist() == [10, 11, 20, 21, 21, 22, 22, 23]
    offsets = np.array([0, 1, 0, 1, 2])
    slots = np.array([3, 3, 5, 5, 5])
    assert path_offsets({5: [0, 2, 4]}, slots, offsets).tolist() == [0, 1, 0, 2, 4]
    assert path_offsets({}, slots, offsets) is offsets
