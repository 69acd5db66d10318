"""Alignment of one step: where in their recordings the tokens of complete texts are."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton.protocol import Plan, Pooling
from baton.protocol.token_columns import unpack
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.layers.attention.attention_weights import AlignedQueries, AttentionWeights
from baton_worker.layers.attention.cross_states import CrossInputs
from baton_worker.pooling.time_alignment import token_places


class AlignmentStep:
    """Collects attention weights chunk by chunk.

    Args:
        filter_width: `spec.Decoder.alignment_filter`.
    """

    def __init__(self, filter_width: int) -> None:
        self._filter_width, self._held = filter_width, dict[int, list[Tensor]]()

    def enter(self, plan: Plan) -> None:
        """Enter and release sequences.

        Raises:
            PlanError: places are wanted of a model without alignment heads.
        """
        for slot in unpack(plan.release, "I"):
            self._held.pop(slot, None)
        for new in plan.new_sequences:
            self._held.pop(new.slot, None)
            if new.pooling is not None and new.pooling.aligned_from and not self._filter_width:
                raise PlanError("A plan wants places of tokens, and no heads of the model align.")

    def step(self, inputs: StepInputs, outputs: StepOutputs) -> None:
        """Align the texts whose last token has run."""
        weights = _weights(inputs)
        if weights is None and not self._held:
            return
        for slot in weights.slots if weights is not None else ():
            assert weights is not None
            if slot not in outputs.failed:
                self._held.setdefault(slot, []).append(weights.of(slot))
        rows = inputs.rows
        complete = rows.slots[rows.starts + rows.counts == inputs.lengths].tolist()
        for slot in self._held.keys() & complete:
            if slot not in outputs.failed:
                self._finish(slot, outputs)

    def _finish(self, slot: int, outputs: StepOutputs) -> None:
        weights = torch.cat(self._held.pop(slot), dim=1)
        if not bool(torch.isfinite(weights).all()):
            outputs.break_down(np.array([slot]), "attention weights")
            return
        outputs.vectors[slot] = token_places(weights, self._filter_width).astype(np.float32)


def attention_weights(inputs: StepInputs, cross: CrossInputs) -> AttentionWeights | None:
    """The buffer to which layers write the weights of a step; None if none are requested."""
    queries, offsets = list[AlignedQueries](), np.cumsum(inputs.rows.counts) - inputs.rows.counts
    columns = inputs.rows.slots, inputs.rows.starts, inputs.rows.counts, offsets
    places = cross.places.cpu().numpy()
    for slot, start, count, offset in zip(*(c.tolist() for c in columns), strict=True):
        pooling = inputs.pooling.get(slot, Pooling())
        first = offset + max(0, pooling.aligned_from - start)
        if not pooling.aligned_from or first >= offset + count:
            continue
        rows = slice(*np.searchsorted(places, (first, offset + count)).tolist())
        item = int(cross.items[rows.start])
        table = cross.tables[item].long().to(cross.places.device)
        num_states = int(cross.lengths[item])
        queries.append(
            AlignedQueries(slot, rows, table, num_states, min(num_states, pooling.num_states))
        )
    return AttentionWeights(queries) if queries else None


def _weights(inputs: StepInputs) -> AttentionWeights | None:
    media = inputs.embeddings
    return None if media is None or media.cross is None else media.cross.weights
