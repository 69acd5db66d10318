"""Token log and progress of the sequence in each slot.

A slot's life: entered -> computed grows as its rows run, length as they sample -> done (a stop id,
or it failed; rows of plans already in flight are skipped) -> released.

    tokens[slot]   | prompt ................ | log ........ | unused      |
                   0                  num_prompt         length      max_model_len
    in pages       | ............... computed |   what is left of it is run next
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from baton.protocol import NewSequence
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.plan_columns import Column, PlanError, column

UNKNOWN = -1
"""Placeholder of a token that has been sampled and is not on the host yet."""


class SequenceStates:
    """Parallel columns by slot."""

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.tokens = np.zeros((max_num_seqs, max_model_len), np.int32)
        self.lengths = np.zeros(max_num_seqs, np.int64)
        self.num_prompt = np.zeros(max_num_seqs, np.int64)
        self.computed = np.zeros(max_num_seqs, np.int64)
        self.held = np.zeros(max_num_seqs, np.bool_)
        self.done = np.zeros(max_num_seqs, np.bool_)
        self.ends = np.zeros(max_num_seqs, np.int64)
        """Most tokens of each sequence."""

    def __len__(self) -> int:
        """Number of sequences, finished ones included."""
        return int(self.held.sum())

    @property
    def going(self) -> bool:
        """True if some sequence is not known to have finished."""
        return bool(np.count_nonzero(self.held & ~self.done))

    def enter(self, new: NewSequence) -> npt.NDArray[np.int32]:
        """Enter a sequence; returns a view of its tokens.

        Raises:
            PlanError: it exceeds the maximum length, or the slot is taken.
        """
        slot, tokens, room = new.slot, column(new.tokens, "<i4"), self.tokens.shape[1]
        if not 0 <= slot < len(self.held) or self.held[slot]:
            raise PlanError(f"Slot {slot} is taken or not one of {len(self.held)}.")
        if not 0 < new.num_prompt <= len(tokens) <= room:
            raise PlanError(
                f"Slot {slot} enters with {len(tokens)} tokens, {new.num_prompt} of them prompt; "
                f"this worker holds 1 to {room}."
            )
        if not 0 <= new.num_computed < len(tokens):
            raise PlanError(f"Slot {slot} enters with {new.num_computed} of its tokens computed.")
        self.held[slot], self.done[slot] = True, False
        self.computed[slot] = new.num_computed
        self.lengths[slot], self.num_prompt[slot] = len(tokens), new.num_prompt
        self.ends[slot] = min(new.num_prompt + new.sampling.max_tokens, room)
        self.tokens[slot, : len(tokens)] = tokens
        return self.tokens[slot, : len(tokens)]

    def release(self, slots: Column) -> None:
        """Free these slots. Raises: PlanError: a slot holds none."""
        self.check_held(slots, "release")
        self.held[slots] = False

    def check_held(self, slots: Column, what: str) -> None:
        """Raise `PlanError` unless all of these slots hold a sequence."""
        if slots.size and (slots.max() >= len(self.held) or not self.held[slots].all()):
            raise PlanError(f"A plan names slots to {what} that hold no sequence.")

    def check_rows(self, rows: BatchRows, room: Column) -> None:
        """Raise `PlanError` unless these rows continue at the positions of their sequences; `room`
        is the token capacity of each row's pages."""
        slots, ends = rows.slots, rows.starts + rows.counts
        lengths, computed = self.lengths[slots], self.computed[slots]
        problems = {
            "starts elsewhere than where it stopped": computed != rows.starts,
            "runs no token": rows.counts == 0,
            "runs tokens that do not exist yet": ends > lengths,
            "runs beyond its pages": ends > room,
            "samples before its last token": rows.samples & (ends < lengths),
            "samples beyond the longest sequence": rows.samples & (lengths >= self.tokens.shape[1]),
        }
        for problem, where in problems.items():
            if np.count_nonzero(where):
                raise PlanError(f"Slot {slots[where.argmax()]} {problem}.")

    def first_index(self, slots: Column) -> Column:
        """Position in its log of the token that each slot samples next."""
        index: Column = self.lengths[slots] - self.num_prompt[slots]
        return index

    def log(self, slot: int, length: int) -> npt.NDArray[np.int32]:
        """Output tokens of a slot up to this sequence length, a view."""
        return self.tokens[slot, self.num_prompt[slot] : length]

    def advance(self, rows: BatchRows) -> None:
        """Mark the KV of these rows' tokens as computed."""
        self.computed[rows.slots] = rows.starts + rows.counts

    def append(self, slots: Column, counts: Column, tokens: npt.NDArray[np.int32]) -> None:
        """Append `counts` of the tokens to the logs, slot after slot. KV beyond them, and that of
        the last one, counts as not computed."""
        lengths = self.lengths[slots]
        if len(tokens) == len(slots) == np.count_nonzero(counts):  # One each.
            self.tokens[slots, lengths] = tokens
        else:
            row = np.repeat(np.arange(len(slots)), counts)
            offsets = np.arange(len(tokens)) - (np.cumsum(counts) - counts)[row]
            self.tokens[slots[row], lengths[row] + offsets] = tokens
        self.lengths[slots] = lengths = lengths + counts
        self.computed[slots] = np.minimum(self.computed[slots], lengths - 1)

    def expect(self, slots: Column) -> Column:
        """Append one token, whose id is on the device only, to each log; returns the positions. The
        id is `UNKNOWN` until `resolve`."""
        positions: Column = self.lengths[slots].copy()
        self.append(slots, np.ones_like(slots), np.full(len(slots), UNKNOWN, np.int32))
        return positions

    def resolve(self, slots: Column, positions: Column, tokens: npt.NDArray[np.int32]) -> None:
        """Put the numbers of expected tokens in their places."""
        self.tokens[slots, positions] = tokens

    def retract(self, slots: Column) -> None:
        """Take the last token of each log back, which was expected of a sequence that has ended."""
        self.lengths[slots] -= 1
        self.computed[slots] = np.minimum(self.computed[slots], self.lengths[slots] - 1)
