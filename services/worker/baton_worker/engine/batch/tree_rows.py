"""Rows of a step whose new tokens are trees of drafts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.plan_columns import Column


def depths(parents: Column) -> Column:
    """The depth of each new token of a row: int64 [n]; a parent comes before its children."""
    result = np.zeros(len(parents), np.int64)
    for number, parent in enumerate(parents.tolist()):
        result[number] = result[parent] + 1 if parent >= 0 else 0
    return result


def at_depth(trees: Mapping[int, Column], rows: BatchRows, positions: Column) -> Column:
    """Positions of tokens by their depth.

    Args:
        trees: parents by slot, see `DraftTokens.trees`.
        positions: int64 [T], as those of chains.
    """
    if not trees:
        return positions
    positions, ends = positions.copy(), np.cumsum(rows.counts)
    columns = zip(rows.slots.tolist(), rows.starts.tolist(), ends.tolist(), strict=True)
    for slot, start, end in columns:
        if (parents := trees.get(slot)) is not None:
            positions[end - len(parents) : end] = start + depths(parents)
    return positions


def path_offsets(paths: Mapping[int, list[int]], slots: Column, offsets: Column) -> Column:
    """Where in its row the n-th token of a slot's log is: int64 [T].

    Args:
        paths: numbers in the row of the tokens that stay, by slot of a tree.
        slots: int64 [T], of each token.
        offsets: int64 [T]: n, counted from the first token of the row.
    """
    if not paths:
        return offsets
    pairs = zip(slots.tolist(), offsets.tolist(), strict=True)
    return np.array([paths[s][n] if s in paths else n for s, n in pairs], np.int64)
