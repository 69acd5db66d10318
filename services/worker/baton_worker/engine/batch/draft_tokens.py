"""Draft tokens of speculative decoding: appended to token logs until sampling accepts or rejects
them."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from baton.predicted_text import PredictedText
from baton.protocol import NewSequence
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.batch.draft_sampler import DraftSampler
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.batch.target_step import target_step
from baton_worker.engine.batch.tree_sampler import TreeSampler
from baton_worker.kv_cache import KVCache
from baton_worker.sampling import Sampler
from baton_worker.speculative.draft_lengths import Acceptance, draft_lengths
from baton_worker.speculative.lookup import LookupProposer, Match
from baton_worker.speculative.match_acceptance import MatchAcceptance, Rates
from baton_worker.speculative.proposer import DraftRequest, Proposer, Tokens
from baton_worker.speculative.step_costs import StepCosts
from baton_worker.speculative.token_tree import TokenTree


@dataclass(frozen=True)
class DraftOptions:
    """How the sequences of a batch speculate; by default none does."""

    proposer: Proposer | None = None
    num_speculative_tokens: int = 0
    """Maximum drafts of a sequence in one step."""
    step_costs: StepCosts | None = None
    """Limit drafts to those that save time; None: no limit by cost."""
    token_tree: TokenTree | None = None
    """Shape of the drafts of a row, which are then trees; None: chains."""

    @property
    def most(self) -> int:
        """Maximum drafts of a sequence in one step; 0 without a proposer."""
        return 0 if self.proposer is None else self.num_speculative_tokens


NO_DRAFTS = DraftOptions()


class DraftTokens:
    """The sequences that speculate, and the number of drafts of each in this step.

    Args:
        options: how they speculate.
        sampler: what draws tokens.
    """

    def __init__(
        self,
        sequences: SequenceStates,
        tables: BlockTables,
        sampling: SamplingState,
        options: DraftOptions = NO_DRAFTS,
        sampler: Sampler | None = None,
    ) -> None:
        self._sequences, self._tables, self._sampling = sequences, tables, sampling
        self._proposer, self._most = options.proposer, options.most
        self._costs, slots = options.step_costs, len(sequences.held)
        self._groups = [b""] * slots
        self._shape = options.token_tree or TokenTree.chain(self._most)
        self._widths, self._totals = np.array(self._shape.widths, np.int64), self._shape.totals
        self._sampler = DraftSampler(sequences, sampling, sampler)
        if not self._shape.is_chain:
            self._sampler = TreeSampler(self._shape, sequences, sampling, sampler)
        self.seconds = 0.0
        """Seconds of proposing in this step."""
        self._predicted: dict[int, PredictedText] = {}
        """Sequences with a predicted output (`prediction` of the request): only that is drafted."""
        self._acceptance = Acceptance(slots)
        self._match_acceptance = MatchAcceptance()
        self._matched: dict[int, int] = {}
        """By slot: length of the match by which drafts were looked up in this step."""
        self.limits = np.zeros(slots, np.int64)
        """Most drafts of each sequence in one step."""
        self.counts = np.zeros(slots, np.int64)
        """Number of drafts behind each log in this step, to be verified."""
        self.trees: dict[int, Column] = {}
        """By slot: where they are no chain, the parent of each in a row that begins with the last
        token of the log, whose own is -1."""
        self._depths = np.zeros(slots, np.int64)
        """Most of those tokens that may stay."""

    def enter(self, new: NewSequence) -> None:
        """Start speculation for a new sequence."""
        requested = new.sampling.num_speculative_tokens
        self.limits[new.slot] = self._most if requested < 0 else min(requested, self._most)
        self._groups[new.slot] = new.cache_root
        if new.prediction and self.limits[new.slot]:
            self._predicted[new.slot] = PredictedText(new.prediction)
        self._acceptance.enter(new.slot)

    def release(self, slots: Column) -> None:
        """Release these slots."""
        self.limits[slots] = 0
        if self._proposer is not None:
            for slot in slots.tolist():
                self._predicted.pop(slot, None)
                self._proposer.release(slot)

    def stop(self, slots: Column) -> None:
        """Stop speculation for these sequences."""
        self.limits[slots] = 0

    def propose(self, rows: BatchRows, budget: int) -> BatchRows:
        """Append drafts to the logs of decode rows, within their pages and limits, and up to
        `budget` tokens of the step."""
        self.counts[:], self.seconds, self.trees = 0, 0.0, {}
        self._matched.clear()
        if self._proposer is None or not (requests := self._requests(rows)):
            return rows
        begin, num_tokens = time.perf_counter(), int(rows.counts.sum())
        budget -= num_tokens
        if isinstance(self._proposer, LookupProposer):
            self._look_up(requests, self._proposer, num_tokens, budget)
        else:
            rates = self._acceptance.rates(_slots(requests))
            requests = self._paying(requests, rates, num_tokens, budget)
            self._propose(requests, self._proposer)
        self.seconds = time.perf_counter() - begin
        return replace(rows, counts=rows.counts + self.counts[rows.slots])

    def _look_up(
        self, requests: list[DraftRequest], proposer: LookupProposer, num_tokens: int, budget: int
    ) -> None:
        if not self._may_pay(requests, num_tokens):
            return
        drafts = {request.slot: self._match(request, proposer).drafts for request in requests}
        requests = [
            request._replace(most=number)
            for request in requests
            if (number := len(drafts[request.slot]))
        ]
        if not requests:
            return
        for request in self._paying(requests, self._rates(requests), num_tokens, budget):
            self._put(request, drafts[request.slot][: request.most])

    def _may_pay(self, requests: list[DraftRequest], num_tokens: int) -> bool:
        """Whether any draft saves time in this step with the best possible match."""
        if self._costs is None or self._predicted:
            return True
        most = np.array([request.most for request in requests])
        rates = np.full(len(requests), self._match_acceptance.best)
        return bool(draft_lengths(rates, most, num_tokens, self._costs).any())

    def _match(self, request: DraftRequest, proposer: LookupProposer) -> Match:
        """The position of the sequence in earlier text, or in its predicted output."""
        if request.slot in self._predicted:
            return Match(self._prediction(request), 0)
        match = proposer.look_up(request)
        self._matched[request.slot] = match.length
        return match

    def _rates(self, requests: list[DraftRequest]) -> Rates:
        """Acceptance rates by length of match or, of rows without one, by what was accepted of
        them."""
        slots = _slots(requests)
        matched = np.array([self._matched.get(slot, 0) for slot in slots.tolist()], np.int64)
        by_row = self._acceptance.rates(slots)[:, None]
        by_match = self._match_acceptance.rates(matched, self._most)
        return np.where(matched[:, None] > 0, by_match, by_row)

    def _propose(self, requests: list[DraftRequest], proposer: Proposer) -> None:
        for request in requests:
            if request.slot in self._predicted:
                self._put(request, self._prediction(request))
        others = [request for request in requests if request.slot not in self._predicted]
        if not others:
            return
        self._sampler.begin([request.slot for request in others])
        drafts = proposer.propose(others, self._sampler)
        for request, tokens in zip(others, drafts, strict=True):
            if isinstance(self._sampler, TreeSampler):
                depth = min(len(tokens), request.most)
                self._put_tree(request, *self._sampler.tree(request.slot, depth), depth)
            else:
                self._put(request, tokens[: request.most])

    def observe(self, slots: Column, drafted: Column, accepted: Column) -> None:
        """Record the accepted drafts of these slots."""
        some = drafted > 0
        slots, accepted = slots[some], accepted[some]
        depths = self._depths[slots]
        by_match = self._by_match(slots)
        by_row = ~by_match
        self._acceptance.observe(slots[by_row], depths[by_row], accepted[by_row])
        columns = (column[by_match].tolist() for column in (slots, depths, accepted))
        for slot, depth, number in zip(*columns, strict=True):
            self._match_acceptance.observe(self._matched[slot], depth, number)

    def observe_step(
        self, inputs: StepInputs, outputs: StepOutputs, hidden: Tensor, cache: KVCache
    ) -> None:
        """Show a committed step of the target to the proposer; hidden is [T, any]."""
        if self._proposer is None or not self._proposer.observes:
            return
        step = target_step(inputs, outputs, hidden, self._sequences, cache)
        if step is not None:
            self._proposer.observe(step)

    def timed(self, rows: BatchRows, seconds: float) -> None:
        """Record the time of a step with these rows, without what proposing took."""
        if self._costs is None or not len(rows):
            return
        if (rows.counts == 1 + self.counts[rows.slots]).all():  # No prompts.
            self._costs.observe(int(rows.counts.sum()), seconds)

    def _requests(self, rows: BatchRows) -> list[DraftRequest]:
        """The sequences that may have drafts in this step, and how many their pages, lengths and
        limits have room for; of depths, if they are trees."""
        # A row with more than one token is a prefill, or has tokens that its grammar forces.
        decoding = rows.slots[rows.samples & (rows.counts == 1) & (self.limits[rows.slots] > 0)]
        sequences = self._sequences
        lengths = sequences.lengths[decoding]
        room = np.minimum(self._tables.room(decoding), sequences.ends[decoding] - 1) - lengths
        room = np.clip(room, 0, self.limits[decoding])
        most = np.searchsorted(self._totals, room, side="right")
        columns = zip(decoding.tolist(), lengths.tolist(), most.tolist(), strict=True)
        return [
            DraftRequest(
                slot,
                sequences.tokens[slot, :length],
                count,
                self._groups[slot],
                int(sequences.ends[slot]) - length,
            )
            for slot, length, count in columns
            if count
        ]

    def _paying(
        self, requests: list[DraftRequest], rates: Rates, num_tokens: int, budget: int
    ) -> list[DraftRequest]:
        """Requests with drafts, as many as save time and fit into the step."""
        slots = _slots(requests)
        most = np.array([request.most for request in requests], np.int64)
        if self._costs is not None and self._proposer is not None:
            drafting = self._proposer.costs
            most = draft_lengths(rates, most, num_tokens, self._costs, drafting, self._widths)
            self._rest(slots[most == 0])
        paying = list[DraftRequest]()
        for request, number in zip(requests, most.tolist(), strict=True):
            if number := min(number, bisect_right(self._totals, budget)):
                budget -= self._totals[number - 1]
                paying.append(request._replace(most=number))
        return paying

    def _rest(self, slots: Column) -> None:
        """Record that no draft paid for these slots."""
        by_match = self._by_match(slots)
        self._acceptance.rest(slots[~by_match])
        for slot in slots[by_match].tolist():
            self._match_acceptance.rest(self._matched[slot])

    def _by_match(self, slots: Column) -> npt.NDArray[np.bool_]:
        return np.array([self._matched.get(slot, 0) > 0 for slot in slots.tolist()], np.bool_)

    def _prediction(self, request: DraftRequest) -> Tokens:
        """Rest of the request's `prediction` after the log."""
        predicted, slot = self._predicted[request.slot], request.slot
        log = self._sequences.log(slot, len(request.tokens))
        predicted.feed(log[predicted.num_fed :].tolist())
        return np.array(predicted.next(request.most), np.int32)

    def _put(self, request: DraftRequest, drafts: Tokens) -> None:
        """Append the drafts that may follow a log, up to the first that is no token, cannot be
        sampled or ends the sequence."""
        slot, length = request.slot, len(request.tokens)
        if not len(drafts) and not self._sampling.grammars:
            return
        strange = np.flatnonzero((drafts < 0) | (drafts >= self._sampling.vocab_size))
        drafts = drafts[: strange[0]] if len(strange) else drafts
        count = self._sampling.draft(slot, drafts)
        self._sequences.tokens[slot, length : length + count] = drafts[:count]
        self.counts[slot] = self._depths[slot] = count

    def _put_tree(self, request: DraftRequest, drafts: Tokens, parents: Column, depth: int) -> None:
        """Append a tree, node after node."""
        slot, length = request.slot, len(request.tokens)
        self._sequences.tokens[slot, length : length + len(drafts)] = drafts
        self.counts[slot], self._depths[slot] = len(drafts), depth
        if len(drafts):
            self.trees[slot] = parents


def _slots(requests: list[DraftRequest]) -> Column:
    return np.array([request.slot for request in requests], np.int64)
