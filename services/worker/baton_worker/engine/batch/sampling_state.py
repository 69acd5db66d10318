"""Sampling state of each slot: parameters, stop ids, biases, token rules, grammar."""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from baton.errors import SettingsError
from baton.protocol import NewSequence, Sampling
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.sampling import (
    PARAMETERS,
    Adjustments,
    Entries,
    History,
    Parameters,
    TokenRule,
    TokenRules,
    fill,
)
from baton_worker.structured_output.bitmask import Mask
from baton_worker.structured_output.manager import StructuredOutputManager

_NO_TOKEN = "its rules leave no token to sample"


class SamplingState:
    """Sampling state by slot.

    Args:
        sequences: token logs for penalties, rules and grammars.
        vocab_size: ids from here on are refused.
        grammars: matchers of grammars; empty.
    """

    def __init__(
        self, sequences: SequenceStates, vocab_size: int, grammars: StructuredOutputManager
    ) -> None:
        self._sequences, self.vocab_size, self.grammars = sequences, vocab_size, grammars
        slots = len(sequences.held)
        self.parameters: Parameters = np.zeros(slots, PARAMETERS)
        self.stops = np.full((slots, 1), -1, np.int64)
        """int64 [slots, any]: the ids that end each, padded with -1."""
        self.version = 0
        """Another number whenever `parameters` have changed."""
        self._bias: dict[int, tuple[Column, npt.NDArray[np.float32]]] = {}
        self._rules: dict[int, TokenRule] = {}

    @property
    def sequences(self) -> SequenceStates:
        """The token logs."""
        return self._sequences

    def release(self, slots: Column) -> None:
        """Release these slots."""
        for slot in slots.tolist():
            self._bias.pop(slot, None)
            self._rules.pop(slot, None)
            self.grammars.release(slot)

    def enter(self, new: NewSequence, tokens: npt.NDArray[np.int32]) -> str:
        """Enter a sequence with these tokens. Returns why it cannot run, or an empty string."""
        slot, sampling = new.slot, new.sampling
        ids = np.fromiter((*sampling.stop_ids, *sampling.logit_bias), np.int64)
        named = np.fromiter((*sampling.allowed_ids, *chain(*sampling.bad_words)), np.int64)
        for column in (tokens, ids, named):
            if column.size and not 0 <= column.min() <= column.max() < self.vocab_size:
                return f"a token id is outside the vocabulary of {self.vocab_size}"
        self.version += 1
        fill(self.parameters[slot], sampling)
        if new.num_prompt < len(tokens):
            # The prompt log-probabilities of a continued sequence have been reported already.
            self.parameters[slot]["prompt_logprobs"] = -1
        self._set_stops(slot, sampling.stop_ids)
        if sampling.logit_bias:
            values = np.fromiter(sampling.logit_bias.values(), np.float32)
            self._bias[slot] = ids[len(sampling.stop_ids) :], values
        return self._set_rule(slot, sampling) or self._set_grammar(new, len(tokens))

    def _set_rule(self, slot: int, sampling: Sampling) -> str:
        try:
            rule = TokenRule.of(sampling)
        except SettingsError as error:
            return error.message
        if rule is not None:
            self._rules[slot] = rule
        return ""

    def _set_grammar(self, new: NewSequence, length: int) -> str:
        slot, sampling = new.slot, new.sampling
        if sampling.grammar is None:
            return ""
        # A request that restricts tokens may have forbidden the only spelling.
        spelled = not sampling.logit_bias and slot not in self._rules
        log = self._sequences.log(slot, length).tolist()
        return self.grammars.enter(slot, sampling.grammar, log, spelled=spelled)

    def _set_stops(self, slot: int, ids: tuple[int, ...]) -> None:
        missing = len(ids) - self.stops.shape[1]
        if missing > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=-1)
        self.stops[slot] = -1
        self.stops[slot, : len(ids)] = ids

    def accept(self, slots: Column, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Advance by one token per slot. Returns the slots that have ended: by a stop id, or by a
        complete grammar that allows nothing more."""
        ended: npt.NDArray[np.bool_] = (self.stops[slots] == tokens[:, None]).any(1)
        if self.grammars:
            over = self.grammars.accept(slots[~ended].tolist(), tokens[~ended].tolist())
            ended |= np.isin(slots, over)
        return ended

    def draft(self, slot: int, drafts: npt.NDArray[np.int32]) -> int:
        """Number of these drafts that may be verified: those before the first that ends the
        sequence or is forbidden by its grammar."""
        if len(drafts):
            ends = np.flatnonzero((drafts[:, None] == self.stops[slot]).any(1))
            drafts = drafts[: ends[0]] if len(ends) else drafts
        if not self.grammars:
            return len(drafts)
        return self.grammars.draft(slot, drafts.tolist())

    def extend_draft(self, slot: int, token: int) -> bool:
        """Like `draft` for one token behind those that are drafted already."""
        if token in self.stops[slot]:
            return False
        return not self.grammars or self.grammars.extend_draft(slot, token)

    def follow(self, slots: Column, tokens: npt.NDArray[np.int32]) -> None:
        """Advance by accepted drafts: a slot for each, in the order of its log."""
        if self.grammars:
            self.grammars.accept(slots.tolist(), tokens.tolist())

    def prefetch_masks(self, slots: Column) -> None:
        """Start computing the grammar masks of these slots in the background."""
        if self.grammars:
            self.grammars.prefetch_masks(slots.tolist())

    def strand(self, slot: int, outputs: StepOutputs) -> None:
        """Mark a slot as failed that has no token left to sample."""
        if error := self.grammars.error(slot) if self.grammars else "":
            outputs.strand(slot, error)
        else:
            outputs.failed[slot] = _NO_TOKEN

    def adjustments(self, rows: LogitsRows, drafts: Column | None = None) -> Adjustments:
        """Adjustments of these rows of logits before sampling.

        Args:
            drafts: int64 [L], drafts before each row; None: as many as there are rows of its slot.
        """
        slots, parameters = rows.slots, self.parameters[rows.slots]
        forbidden = rows.index < parameters["min_tokens"]
        return Adjustments(
            self._biases(slots, parameters) if self._bias else None,
            self._forbidden(slots, forbidden) if forbidden.any() else None,
            self._history(rows, parameters) if parameters["penalised"].any() else None,
            self._rules_of(rows) if self._rules else None,
            self._mask(slots, drafts) if self.grammars else None,
        )

    def _mask(self, slots: Column, drafts: Column | None) -> Mask | None:
        before = None if drafts is None else drafts.tolist()
        return self.grammars.mask(slots.tolist(), self.stops[slots], before)

    def _rules_of(self, rows: LogitsRows) -> TokenRules | None:
        places = zip(rows.slots.tolist(), rows.lengths.tolist(), strict=True)
        ruled = [(row, *place) for row, place in enumerate(places) if place[0] in self._rules]
        if not ruled:
            return None
        return TokenRules(
            [row for row, _, _ in ruled],
            [self._rules[slot] for _, slot, _ in ruled],
            [self._sequences.log(slot, length) for _, slot, length in ruled],
        )

    def _biases(self, slots: Column, parameters: Parameters) -> Entries | None:
        biased = np.flatnonzero(parameters["biased"])
        if not len(biased):
            return None
        ids, values = zip(*(self._bias[slot] for slot in slots[biased].tolist()), strict=True)
        rows = np.repeat(biased, [len(part) for part in ids])
        return Entries(rows, np.concatenate(ids), np.concatenate(values))

    def _forbidden(self, slots: Column, which: npt.NDArray[np.bool_]) -> Entries:
        chosen = np.flatnonzero(which)
        stops = self.stops[slots[chosen]]
        row, column = np.nonzero(stops >= 0)
        values = np.full(len(row), -np.inf, np.float32)
        return Entries(chosen[row], stops[row, column], values)

    def _history(self, rows: LogitsRows, parameters: Parameters) -> History:
        penalised = np.flatnonzero(parameters["penalised"])
        slots, lengths = rows.slots[penalised], rows.lengths[penalised][:, None]
        tokens = self._sequences.tokens[slots, : int(lengths.max())].astype(np.int64)
        position = np.arange(tokens.shape[1])
        tokens = np.where(position < lengths, tokens, tokens[:, :1])
        prompt = self._sequences.num_prompt[slots][:, None]
        sampled = (position >= prompt) & (position < lengths)
        return History(penalised, tokens, sampled.astype(np.float32), parameters[penalised])
