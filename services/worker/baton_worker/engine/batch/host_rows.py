"""Rows whose step needs the host: its predecessor has to be read before it is launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from baton.protocol import NewSequence, Plan
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.forced_tokens import ForcedTokens
from baton_worker.engine.batch.plan_columns import Column, column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates

REASONS: dict[str, Callable[[NewSequence], bool]] = {
    "its vector is read": lambda new: new.pooling is not None,
    "its grammar masks the next token": lambda new: bool(new.sampling.grammar),
    "its penalties count tokens": lambda new: (
        new.sampling.repetition_penalty != 1
        or new.sampling.presence_penalty != 0
        or new.sampling.frequency_penalty != 0
    ),
    "its logits are adjusted": lambda new: bool(
        new.sampling.logit_bias
        or new.sampling.allowed_ids
        or new.sampling.bad_words
        or new.sampling.processors
    ),
    "its typical_p has no kernel": lambda new: new.sampling.typical_p < 1,
    "its log-probabilities are read": lambda new: new.sampling.logprobs >= 0,
    "its tokens attend to media": lambda new: any(item.num_states for item in new.media),
    "media goes along with its tokens": lambda new: any(item.alongside for item in new.media),
}
"""Why every step of a sequence needs the host."""
PROMPT_REASONS: dict[str, Callable[[NewSequence], bool]] = {
    "its media are encoded": lambda new: bool(new.media),
    "its prompt log-probabilities are read": lambda new: new.sampling.prompt_logprobs >= 0,
}
"""Why the steps of its prompt do."""
_ALONE = "its media or grammar change what a step behind it reads"
_UNREAD = "a token of it is not sampled yet"
_DRAFTS = "it speculates"
_STOPS = "min_tokens forbids its stop tokens"
_OTHER_PAGES = "pages are copied or swapped first"
_LEAVES = "a sequence of the last step leaves"


class HostRows:
    """By slot: whether its steps need the host."""

    def __init__(
        self, sequences: SequenceStates, sampling: SamplingState, forced: ForcedTokens
    ) -> None:
        self._sequences, self._sampling, self._forced = sequences, sampling, forced
        slots = len(sequences.held)
        self._until = np.zeros(slots, np.int64)
        """Steps that begin at a lower position need the host."""
        self._reasons = [""] * slots
        self._alone = np.zeros(slots, np.bool_)
        """No step of the sequence may overlap with another one in a pipeline."""

    def enter(self, new: NewSequence) -> None:
        """Start tracking a new sequence."""
        reason, until = _reason(new)
        if not reason and self._forced.ahead[new.slot]:
            reason, until = _DRAFTS, len(self._sequences.tokens[new.slot])
        self._until[new.slot], self._reasons[new.slot] = until, reason
        self._alone[new.slot] = _runs_alone(new) or bool(self._forced.ahead[new.slot])

    def reason(self, plan: Plan, turn: int, launched: Column, speculates: bool) -> str:
        """Why the step of a plan needs the host, as half a sentence; "" if it does not.

        Args:
            plan: not applied yet if this is its first step.
            turn: its step, counted from 0.
            launched: slots of the step before, if that is not read yet.
            speculates: whether new sequences may.
        """
        fresh = dict[int, NewSequence]()
        if not turn:
            if plan.swap_in or plan.swap_out or plan.copy_to:
                return _OTHER_PAGES
            if plan.release and np.isin(column(plan.release, "<u4"), launched).any():
                return _LEAVES
            fresh = {new.slot: new for new in plan.new_sequences}
        for new in fresh.values():
            if reason := _reason(new)[0] or _unsteady(new, speculates):
                return reason
        return self._of_held(plan, turn, fresh)

    def waits(self, plan: Plan, turn: int, unread: Sequence[BatchRows], speculates: bool) -> str:
        """Why a step cannot begin in the first stage of a pipeline before steps in later stages
        have been read, as half a sentence; "" if it can.

        Args:
            plan: not applied yet if this is its first step.
            turn: its step, counted from 0.
            unread: the rows of those steps.
            speculates: whether new sequences may.
        """
        slots, fresh = column(plan.rows, "<u4"), () if turn else plan.new_sequences
        if any(np.isin(slots, rows.slots[rows.samples]).any() for rows in unread):
            return _UNREAD
        if not turn and (plan.swap_in or plan.swap_out or plan.copy_to):
            return _OTHER_PAGES
        released = column(b"" if turn else plan.release, "<u4")
        if any(np.isin(released, rows.slots).any() for rows in unread):
            return _LEAVES
        if any(_runs_alone(new) or (speculates and _unsteady(new, True)) for new in fresh):
            return _ALONE
        known = slots[slots < len(self._alone)]
        return _ALONE if self._alone[known].any() else ""

    def _of_held(self, plan: Plan, turn: int, fresh: dict[int, NewSequence]) -> str:
        slots, starts = column(plan.rows, "<u4"), column(plan.num_computed, "<u4") + turn
        if len(starts) != len(slots) or slots.max(initial=0) >= len(self._until):
            return ""  # The plan is refused when it is applied.
        is_held = ~np.isin(slots, [*fresh]) & ~self._sequences.done[slots]
        slots, starts = slots[is_held], starts[is_held]
        bound = np.flatnonzero(starts < self._until[slots])
        if len(bound):
            return self._reasons[int(slots[bound[0]])]
        first = self._sequences.first_index(slots)
        if (first < self._sampling.parameters["min_tokens"][slots]).any():
            return _STOPS
        return ""


def _reason(new: NewSequence) -> tuple[str, int]:
    """(why steps of a sequence need the host, those before this position); ("", 0) if none do."""
    for reason, holds in REASONS.items():
        if holds(new):
            return reason, np.iinfo(np.int64).max
    for reason, holds in PROMPT_REASONS.items():
        if holds(new):
            return reason, new.num_prompt
    return "", 0


def _runs_alone(new: NewSequence) -> bool:
    """Whether no step of a sequence may overlap with another one in a pipeline."""
    return bool(new.pooling is not None or new.sampling.grammar or new.media)


def _unsteady(new: NewSequence, speculates: bool) -> str:
    if speculates and new.sampling.num_speculative_tokens != 0:
        return _DRAFTS
    return _STOPS if new.sampling.min_tokens and new.sampling.stop_ids else ""
