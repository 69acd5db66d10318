"""Draws draft tokens from a drafter's logits, as the target's tokens are drawn from its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.sampling import Sampler
from baton_worker.speculative.proposer import NO_DRAFT, Tokens

_NOTHING = np.zeros(0, np.int32)


class DraftSampler:
    """See `speculative.proposer.DraftSampler`. A draft has the random number, the parameters, the
    penalties and the grammar of the token that is sampled in its place: a drafter with the target's
    logits draws the target's tokens."""

    def __init__(
        self, sequences: SequenceStates, sampling: SamplingState, sampler: Sampler | None = None
    ) -> None:
        self._sequences, self._sampling = sequences, sampling
        self._sampler = Sampler() if sampler is None else sampler
        self._drawn = np.zeros(len(sequences.held), np.int64)
        """Drafts of each slot in this step."""

    def begin(self, slots: Sequence[int]) -> None:
        """Reset the drafts of these slots at the start of a step."""
        self._drawn[list(slots)] = 0
        if self._sampling.grammars:
            for slot in slots:
                self._sampling.draft(slot, _NOTHING)

    def sample(self, logits: Tensor, slots: Column) -> Tokens:
        """See `speculative.proposer.DraftSampler`."""
        logits, tokens = self._fitted(logits), np.full(len(slots), NO_DRAFT, np.int32)
        finite = _finite(logits)
        if finite.any():
            tokens[finite] = self._draw(_some(finite, logits), slots[finite])
        for row in np.flatnonzero(tokens != NO_DRAFT).tolist():
            if not self._append(int(slots[row]), int(tokens[row])):
                tokens[row] = NO_DRAFT
        return tokens

    def _draw(self, logits: Tensor, slots: Column) -> Tokens:
        """Tokens of rows whose logits are finite; `NO_DRAFT` where adjustments leave none."""
        rows, tokens = self._rows(slots), np.full(len(slots), NO_DRAFT, np.int32)
        self._sampling.adjustments(rows, drafts=self._drawn[slots]).apply(logits)
        possible = _finite(logits)
        if possible.any():
            rows = rows.take(possible)
            parameters = self._sampling.parameters[rows.slots]
            tokens[possible] = self._sampler.sample(_some(possible, logits), parameters, rows.index)
        return tokens

    def _rows(self, slots: Column) -> LogitsRows:
        lengths = self._sequences.lengths[slots] + self._drawn[slots]
        index = lengths - self._sequences.num_prompt[slots]
        return LogitsRows(np.arange(len(slots)), slots, lengths, index)

    def _append(self, slot: int, token: int) -> bool:
        """Put a draft behind those of a slot. Returns False if it ends the sequence."""
        if not self._sampling.extend_draft(slot, token):
            return False
        length = int(self._sequences.lengths[slot] + self._drawn[slot])
        if length == self._sequences.tokens.shape[1]:
            return False
        self._sequences.tokens[slot, length] = token
        self._drawn[slot] += 1
        return True

    def _fitted(self, logits: Tensor) -> Tensor:
        """Logits of the target's tokens: others are cut off, and missing ones cannot be drawn."""
        missing = self._sampling.vocab_size - logits.shape[1]
        if missing <= 0:
            return logits[:, : self._sampling.vocab_size].contiguous()
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


def _some(chosen: npt.NDArray[np.bool_], logits: Tensor) -> Tensor:
    if chosen.all():
        return logits
    return logits[torch.from_numpy(np.flatnonzero(chosen)).to(logits.device)]


def _finite(logits: Tensor) -> npt.NDArray[np.bool_]:
    """Rows without NaN and +inf, and not all -inf: bool [R]."""
    finite: npt.NDArray[np.bool_] = logits.amax(1).isfinite().cpu().numpy()
    return finite
