"""Outputs of a step: tokens, vectors, failures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.protocol import Logprobs, Plan, PromptLogprobs, Result
from baton.protocol.vector_columns import join
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.step_inputs import StepInputs


class Committed(NamedTuple):
    """State of the batch after the outputs were committed."""

    first: Column
    """int64 [S]: position in its log of the first token of each of their slots."""
    stopped: Column
    """The slots that have ended: by a stop id, or because their grammar is complete and allows
    nothing more."""


class StepOutputs:
    """Filled while a step runs; then committed to the batch and sent to the scheduler."""

    def __init__(self, inputs: StepInputs) -> None:
        self.rows = inputs.rows
        self.slots: Column = np.zeros(0, np.int64)
        """int64 [S], each once: the slots that have tokens, and those that waited."""
        self.counts: Column = np.zeros(0, np.int64)
        """int64 [S]: new tokens of each, 0 to n: what was forced, the drafts that are accepted, and
        the token that is sampled behind them."""
        self.tokens: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """int32 [sum of counts], slot after slot."""
        self.drafted: Column = np.zeros(0, np.int64)
        """int64 [S]: drafts of each that were verified; empty if there were none at all."""
        self.accepted: Column = np.zeros(0, np.int64)
        """int64 [S]: how many of them are among its tokens, before the last one."""
        self.paths: dict[int, list[int]] = {}
        """By slot whose drafts are a tree: numbers in its row of its last known token and of the
        drafts that sampling has followed."""
        self.withdrawn: list[int] = []
        """The slots that make nothing of this step because of what was drafted for them."""
        self.failed = dict(inputs.failed)
        """By slot: why it cannot continue."""
        self.broken: list[int] = []
        """The slots among those whose numbers are not finite; what is in their pages may not be
        either."""
        self.invalid: list[int] = []
        """The slots among those whose requests are at fault."""
        self.unfollowable: list[int] = []
        """The slots among those whose grammars cannot be followed any further."""
        self.vectors: dict[int, npt.NDArray[np.float32]] = {}
        """By slot: the pooled numbers of a text that is complete."""
        self.logprobs: Logprobs | None = None
        self.prompt_logprobs: list[PromptLogprobs] = []
        self.swap_seconds = self.encoder_seconds = 0.0
        self.num_encoded = self.num_encoded_tokens = 0
        """Media items that were encoded, and their embeddings."""

    @property
    def grown(self) -> Column:
        """int64: slots with new tokens."""
        if np.count_nonzero(self.counts) == len(self.slots):
            return self.slots
        return self.slots[self.counts > 0]

    @property
    def last_tokens(self) -> npt.NDArray[np.int32]:
        """int32: last new token of each of those slots."""
        tokens = self.tokens
        if len(tokens) == np.count_nonzero(self.counts):
            return tokens
        return tokens[np.cumsum(self.counts[self.counts > 0]) - 1]

    @property
    def accepted_drafts(self) -> tuple[Column, npt.NDArray[np.int32]]:
        """Slot and token of each, in the order of the tokens."""
        counts = self.counts[: len(self.accepted)]
        last = np.cumsum(counts) - 1
        row = np.repeat(np.arange(len(counts)), self.accepted)
        offset = np.arange(len(row)) - (np.cumsum(self.accepted) - self.accepted)[row]
        return self.slots[row], self.tokens[(last - self.accepted)[row] + offset]

    def fail(self, slots: Column, why: str) -> None:
        """Mark these slots as failed."""
        self.failed |= dict.fromkeys(slots.tolist(), why)

    def refuse(self, slots: list[int], why: str) -> None:
        """Mark these slots as failed because of their requests."""
        self.invalid += slots
        self.failed |= dict.fromkeys(slots, why)

    def strand(self, slot: int, why: str) -> None:
        """Mark a slot as failed because of its grammar."""
        self.unfollowable.append(slot)
        self.failed[slot] = why

    def break_down(self, slots: Column, what: str) -> None:
        """Mark these slots as failed because of non-finite numbers."""
        self.broken += slots.tolist()
        self.fail(slots, f"the model's {what} are not finite for this sequence")

    def wait(self, stalled: Column) -> None:
        """Mark slots that did not run: rows without a token, after the others."""
        if len(stalled) or self.withdrawn:
            slots = np.concatenate((stalled, np.array(self.withdrawn, np.int64)))
            self.slots = np.concatenate((self.slots, slots))
            self.counts = np.concatenate((self.counts, np.zeros_like(slots)))

    def _bytes_of(self, drafts: Column) -> bytes:
        """A column of drafts, or nothing if there were none."""
        padding = len(self.slots) - len(drafts)
        return drafts.astype(np.uint8).tobytes() + bytes(padding) if len(drafts) else b""

    def result(
        self, plan: Plan, turn: int, committed: Committed, duration: float, gap: float
    ) -> Result:
        """The result message for the scheduler. Times are in seconds."""
        return Result(
            epoch=plan.epoch,
            step=plan.step + turn,
            rows=self.slots.astype("<u4").tobytes(),
            first=committed.first.astype("<u4").tobytes(),
            counts=self.counts.astype(np.uint8).tobytes(),
            tokens=self.tokens.astype("<i4").tobytes(),
            finished=dict.fromkeys(committed.stopped.tolist(), "stop"),
            failed=self.failed,
            logprobs=self.logprobs,
            prompt_logprobs=tuple(self.prompt_logprobs),
            pooled=join({slot: v.astype("<f4").tobytes() for slot, v in self.vectors.items()}),
            duration_us=round(duration * 1e6),
            gap_us=round(gap * 1e6),
            swap_us=round(self.swap_seconds * 1e6),
            encoder_us=round(self.encoder_seconds * 1e6),
            num_encoded=self.num_encoded,
            num_encoded_tokens=self.num_encoded_tokens,
            invalid=np.array(self.invalid, "<u4").tobytes(),
            unfollowable=np.array(self.unfollowable, "<u4").tobytes(),
            drafted=self._bytes_of(self.drafted),
            accepted=self._bytes_of(self.accepted),
        )
