"""Tokens that are guessed and put behind logs, until sampling has said which of them stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from baton.predicted_text import PredictedText
from baton.protocol import NewSequence
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.speculative.draft_lengths import Acceptance, draft_lengths
from baton_worker.speculative.proposer import DraftRequest, Proposer, Tokens
from baton_worker.speculative.step_costs import StepCosts


class DraftTokens:
    """Which sequences are guessed for, and how many tokens each has been given in this step.

    Args:
        proposer: what guesses; None: nothing does.
        most: drafts of a sequence in one step.
        costs: of steps, by which drafts are made where they pay; None: as many as there may be.
    """

    def __init__(
        self,
        sequences: SequenceStates,
        tables: BlockTables,
        sampling: SamplingState,
        proposer: Proposer | None = None,
        most: int = 0,
        costs: StepCosts | None = None,
    ) -> None:
        self._sequences, self._tables, self._sampling = sequences, tables, sampling
        self._proposer, self._most = proposer, most if proposer is not None else 0
        self._costs, slots = costs, len(sequences.held)
        self._groups = [b""] * slots
        self._predicted: dict[int, PredictedText] = {}
        """Sequences whose clients have said what they expect: that is drafted, and nothing else."""
        self._acceptance = Acceptance(slots)
        self.limits = np.zeros(slots, np.int64)
        """Most drafts of each sequence in one step."""
        self.counts = np.zeros(slots, np.int64)
        """How many tokens stand behind each log in this step, to be verified."""

    def enter(self, new: NewSequence) -> None:
        """A sequence has entered."""
        asked = new.sampling.num_speculative_tokens
        self.limits[new.slot] = self._most if asked < 0 else min(asked, self._most)
        self._groups[new.slot] = new.cache_root
        if new.prediction and self.limits[new.slot]:
            self._predicted[new.slot] = PredictedText(new.prediction)
        self._acceptance.enter(new.slot)

    def release(self, slots: Column) -> None:
        """Their sequences have gone."""
        self.limits[slots] = 0
        if self._proposer is not None:
            for slot in slots.tolist():
                self._predicted.pop(slot, None)
                self._proposer.release(slot)

    def stop(self, slots: Column) -> None:
        """These sequences go on token by token."""
        self.limits[slots] = 0

    def propose(self, rows: BatchRows, budget: int) -> BatchRows:
        """Put drafts behind the logs of rows that decode, as far as their pages and their limits
        go, and no more tokens than `budget` in all."""
        self.counts[:] = 0
        if self._proposer is None or not (requests := self._requests(rows, budget)):
            return rows
        for request in requests:
            if request.slot in self._predicted:
                self._put(request, self._prediction(request))
        others = [request for request in requests if request.slot not in self._predicted]
        for request, drafts in zip(others, self._proposer.propose(others), strict=True):
            self._put(request, drafts[: request.most])
        return replace(rows, counts=rows.counts + self.counts[rows.slots])

    def observe(self, slots: Column, drafted: Column, accepted: Column) -> None:
        """A step has verified drafts of these slots."""
        some = drafted > 0
        self._acceptance.observe(slots[some], drafted[some], accepted[some])

    def timed(self, rows: BatchRows, seconds: float) -> None:
        """A step has run these rows in so long."""
        if self._costs is None or not len(rows):
            return
        if (rows.counts == 1 + self.counts[rows.slots]).all():  # No prompts.
            self._costs.observe(int(rows.counts.sum()), seconds)

    def _requests(self, rows: BatchRows, budget: int) -> list[DraftRequest]:
        # Of a row with more tokens than one a prompt is run, or what its grammar forces.
        decoding = rows.slots[rows.samples & (rows.counts == 1) & (self.limits[rows.slots] > 0)]
        sequences, requests = self._sequences, list[DraftRequest]()
        lengths = sequences.lengths[decoding]
        room = np.minimum(self._tables.room(decoding), sequences.ends[decoding] - 1) - lengths
        most = self._worth(decoding, np.clip(room, 0, self.limits[decoding]), rows)
        columns = zip(decoding.tolist(), lengths.tolist(), most.tolist(), strict=True)
        for slot, length, count in columns:
            count = min(count, budget)
            if count > 0:
                tokens = sequences.tokens[slot, :length]
                requests.append(DraftRequest(slot, tokens, count, self._groups[slot]))
                budget -= count
        return requests

    def _worth(self, slots: Column, most: Column, rows: BatchRows) -> Column:
        """So many drafts of these slots pay, of `most` that there is room for."""
        if self._costs is None or not len(slots):
            return most
        rates, num_tokens = self._acceptance.rates(slots), int(rows.counts.sum())
        lengths = draft_lengths(rates, most, num_tokens, self._costs)
        self._acceptance.rest(slots[lengths == 0])
        return lengths

    def _prediction(self, request: DraftRequest) -> Tokens:
        """What is expected behind the log of a sequence."""
        predicted, slot = self._predicted[request.slot], request.slot
        log = self._sequences.log(slot, len(request.tokens))
        predicted.feed(log[predicted.num_fed :].tolist())
        return np.array(predicted.next(request.most), np.int32)

    def _put(self, request: DraftRequest, drafts: Tokens) -> None:
        """Put those behind a log that may follow it: a draft that is no token or cannot be sampled
        is none, and neither is one that ends the sequence."""
        slot, length = request.slot, len(request.tokens)
        strange = np.flatnonzero((drafts < 0) | (drafts >= self._sampling.vocab_size))
        drafts = drafts[: strange[0]] if len(strange) else drafts
        count = self._sampling.draft(slot, drafts)
        self._sequences.tokens[slot, length : length + count] = drafts[:count]
        self.counts[slot] = count
