"""Forward pass of a bidirectional encoder over whole texts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.engine.batch.plan_columns import Column, PlanError
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.models.encoder import EncoderModel


class EncoderForward:
    """See `ForwardPass`. Pages have numbers only, no memory."""

    def __init__(self, model: EncoderModel, device: torch.device) -> None:
        self._encoder, self._device = model, device

    def __call__(self, inputs: StepInputs) -> Tensor:
        """Final hidden states [T, hidden] of whole texts."""
        check_whole(inputs)
        counts = inputs.rows.counts
        types = (inputs.positions >= np.repeat(_seconds(inputs), counts)).astype(np.int64)
        return self._encoder.encode(
            self._tensor(inputs.tokens),
            self._tensor(inputs.positions),
            counts.tolist(),
            self._tensor(types),
        )

    def logits(self, hidden: Tensor, indices: Column | None = None) -> Tensor:
        """See `ForwardPass`."""
        raise PlanError("A plan samples a token, and an encoder makes none.")

    def _tensor(self, numbers: Column) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


def check_whole(inputs: StepInputs) -> None:
    """Raise `PlanError` unless every row is a whole text."""
    has_media = bool(inputs.media) or inputs.embeddings is not None
    assert not has_media, "no encoder of texts takes embeddings in the place of tokens"
    if inputs.rows.starts.any() or (inputs.rows.counts != inputs.lengths).any():
        raise PlanError("A plan runs a part of a text, but every token of it sees all others.")


def _seconds(inputs: StepInputs) -> Column:
    """Start of the second text of a pair per row; the length of the row for a single text."""
    seconds = inputs.lengths.copy()
    for row, slot in enumerate(inputs.rows.slots.tolist()):
        if (pooling := inputs.pooling.get(slot)) is not None and pooling.second:
            seconds[row] = pooling.second
    return seconds
