"""The part of a target step that a proposer reads: the states of confirmed tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.batch.tree_rows import path_offsets
from baton_worker.kv_cache import KVCache
from baton_worker.speculative.proposer import TargetStep


def target_step(
    inputs: StepInputs,
    outputs: StepOutputs,
    hidden: Tensor,
    sequences: SequenceStates,
    cache: KVCache,
) -> TargetStep | None:
    """The states of a committed step, without those of rejected drafts, of rows that failed, and of
    tokens that no other follows yet. None: there are none.

    Args:
        hidden: [T, any], of all tokens of the step.
        sequences: the logs, with the outputs of the step.
    """
    rows, out = inputs.rows, (*outputs.failed, *outputs.withdrawn, *inputs.pooling)
    remaining = sequences.lengths[rows.slots] - 1 - rows.starts
    counts = np.where(np.isin(rows.slots, out), 0, np.clip(remaining, 0, rows.counts))
    some = counts > 0
    if not some.any():
        return None
    slots, starts, accepted = rows.slots[some], rows.starts[some], counts[some]
    row = np.repeat(np.arange(len(accepted)), accepted)
    offset = np.arange(len(row)) - (np.cumsum(accepted) - accepted)[row]
    index = (np.cumsum(rows.counts) - rows.counts)[some][row]
    index = index + path_offsets(outputs.paths, slots[row], offset)
    if len(index) != len(hidden):
        hidden = hidden.index_select(0, torch.from_numpy(index).to(hidden.device))
    return TargetStep(
        slots=slots,
        starts=starts,
        counts=accepted,
        hidden=hidden,
        next_tokens=sequences.tokens[slots[row], starts[row] + offset + 1].astype(np.int64),
        positions=inputs.positions[..., index],
        tables=inputs.tables,
        cache=cache,
    )
