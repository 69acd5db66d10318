"""What a proposer sees of a step: tokens that others follow in the log, with their states."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.engine.batch.target_step import target_step


class _Fields:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


def test_only_confirmed_tokens_are_seen() -> None:
    """A chunk of a prompt, a row with a rejected draft, one that failed, one that pools, the end of
    a prompt that does not sample."""
    sequences = SequenceStates(5, 16)
    sequences.tokens[:] = np.arange(5)[:, None] * 100 + np.arange(16)
    sequences.lengths[:] = (9, 7, 5, 5, 4)
    slots, starts, counts = (
        np.array([1, 0, 2, 3, 4]),
        np.array([4, 2, 3, 0, 2]),
        np.array([3, 3, 1, 2, 2]),
    )
    rows = BatchRows(slots, starts, counts, np.ones(5, bool))
    inputs: Any = _Fields(rows=rows, pooling={3: None}, positions=np.arange(11), tables="t")
    outputs: Any = _Fields(failed={2: "why"}, withdrawn=[], paths={})
    hidden = torch.arange(11.0)[:, None]
    cache: Any = "c"
    step = target_step(inputs, outputs, hidden, sequences, cache)
    assert step is not None
    assert step.slots.tolist() == [1, 0, 4] and step.starts.tolist() == [4, 2, 2]
    assert step.counts.tolist() == [2, 3, 1] and step.last.tolist() == [1, 4, 5]
    assert step.lengths.tolist() == [7, 6, 4]
    assert step.next_tokens.tolist() == [105, 106, 3, 4, 5, 403]
    assert step.hidden.flatten().tolist() == step.positions.tolist() == [0, 1, 3, 4, 5, 9]
    # Of a tree the nodes that were followed are seen: the known token and the second of two drafts.
    outputs.paths = {1: [0, 2]}
    step = target_step(inputs, outputs, hidden, sequences, cache)
    assert step is not None and step.next_tokens.tolist() == [105, 106, 3, 4, 5, 403]
    assert step.hidden.flatten().tolist() == [0, 2, 3, 4, 5, 9]
    outputs.failed |= dict.fromkeys((0, 1, 4), "why")
    assert target_step(inputs, outputs, hidden, sequences, cache) is None
