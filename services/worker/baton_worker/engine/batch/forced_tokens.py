"""Tokens that grammars force, and the sequences that run ahead of the scheduler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates

_MOST_FORCED = 200
"""Forced tokens of one row in one step: with the one that is sampled they are counted in a byte."""


class ForcedTokens:
    """The sequences that may run ahead, and the number of forced tokens of each in this step."""

    def __init__(
        self, sequences: SequenceStates, tables: BlockTables, sampling: SamplingState
    ) -> None:
        self._sequences, self._tables, self._sampling = sequences, tables, sampling
        slots = len(sequences.held)
        self.ahead = np.zeros(slots, np.bool_)
        """The sequence may run ahead of what the scheduler has planned: it decodes wherever it
        stands, whatever start a plan names."""
        self._jumps = np.zeros(slots, np.bool_)
        """A grammar may force tokens."""
        self.counts = np.zeros(slots, np.int64)
        """Number of tokens that a grammar has forced behind each log in this step, before one is
        sampled. The log includes them once the step is committed."""
        self._entered = np.zeros(slots, np.int64)
        """Length of each sequence when it entered: it decodes once those are computed."""

    def enter(self, slot: int, *, drafts: bool = False) -> None:
        """Start tracking a new sequence, which may have a grammar or speculate."""
        self._entered[slot] = self._sequences.lengths[slot]
        self._jumps[slot] = self._sampling.grammars.jumps(slot)
        self.ahead[slot] = self._jumps[slot] or drafts

    def release(self, slots: Column) -> None:
        """Release these slots."""
        self.ahead[slots] = self._jumps[slots] = False

    @property
    def _any(self) -> bool:
        """True if some sequence may run ahead."""
        return bool(np.count_nonzero(self.ahead))

    def in_place(self, rows: BatchRows) -> tuple[BatchRows, Column]:
        """(the rows at their actual positions, since the scheduler does not know how far sequences
        ran ahead; slots left out because their pages are full)."""
        if not self._any:
            return rows, rows.slots[:0]
        slots, computed = rows.slots, self._sequences.computed[rows.slots]
        ahead = self.ahead[slots] & (computed >= self._entered[slots])
        if not ahead.any():
            return rows, slots[:0]
        starts = np.where(ahead, computed, rows.starts)
        full = ahead & (starts + rows.counts > self._tables.room(slots))
        return replace(rows, starts=starts).take(~full), slots[full]

    def jump_forward(self, rows: BatchRows, budget: int) -> BatchRows:
        """Append the tokens that grammars force to the logs of sampling rows, within their pages
        and limits, and up to `budget` tokens of the step."""
        self.counts[:] = 0
        if not np.count_nonzero(self._jumps):
            return rows
        budget -= int(rows.counts.sum())
        for slot in rows.slots[self._jumps[rows.slots] & rows.samples].tolist():
            budget -= self._force(slot, budget)
        return replace(rows, counts=rows.counts + self.counts[rows.slots])

    def _force(self, slot: int, budget: int) -> int:
        """Append forced tokens to a log; returns their number."""
        sequences, length = self._sequences, int(self._sequences.lengths[slot])
        room = min(self._tables.room_of(slot), int(sequences.ends[slot]) - 1)
        most = min(room - length, budget, _MOST_FORCED)
        tokens = self._sampling.grammars.run(slot, self._sampling.stops[slot].tolist(), most)
        sequences.tokens[slot, length : length + len(tokens)] = tokens
        self.counts[slot] = len(tokens)
        return len(tokens)

    def over(self, slots: Column) -> Column:
        """Slots that have reached their maximum output by running ahead."""
        if not self._any:
            return slots[:0]
        ends = self._sequences.lengths[slots] >= self._sequences.ends[slots]
        over: Column = slots[self.ahead[slots] & ends]
        return over
