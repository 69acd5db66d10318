"""Draft tokens of speculative decoding: appended to token logs until sampling accepts or rejects
them."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import replace

import numpy as np
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
from baton_worker.speculative.proposer import DraftRequest, Proposer, Tokens
from baton_worker.speculative.step_costs import StepCosts
from baton_worker.speculative.token_tree import TokenTree


class DraftTokens:
    """The sequences that speculate, and the number of drafts of each in this step.

    Args:
        proposer: the proposer; None: no speculation.
        most: maximum drafts of a sequence in one step.
        costs: step costs, which limit drafts to those that pay; None: no limit by cost.
        sampler: what draws tokens.
        shape: of the drafts of a row, which are then trees; None: chains.
    """

    def __init__(
        self,
        sequences: SequenceStates,
        tables: BlockTables,
        sampling: SamplingState,
        proposer: Proposer | None = None,
        most: int = 0,
        costs: StepCosts | None = None,
        sampler: Sampler | None = None,
        shape: TokenTree | None = None,
    ) -> None:
        self._sequences, self._tables, self._sampling = sequences, tables, sampling
        self._proposer, self._most = proposer, most if proposer is not None else 0
        self._costs, slots = costs, len(sequences.held)
        self._groups = [b""] * slots
        self._shape = TokenTree.chain(self._most) if shape is None else shape
        self._widths, self._totals = np.array(self._shape.widths, np.int64), self._shape.totals
        self._sampler = DraftSampler(sequences, sampling, sampler)
        if not self._shape.is_chain:
            self._sampler = TreeSampler(self._shape, sequences, sampling, sampler)
        self.seconds = 0.0
        """What proposing took in this step."""
        self._predicted: dict[int, PredictedText] = {}
        """Sequences whose clients have said what they expect: that is drafted, and nothing else."""
        self._acceptance = Acceptance(slots)
        self.limits = np.zeros(slots, np.int64)
        """Most drafts of each sequence in one step."""
        self.counts = np.zeros(slots, np.int64)
        """How many tokens stand behind each log in this step, to be verified."""
        self.trees: dict[int, Column] = {}
        """By slot: where they are no chain, the parent of each in a row that begins with the last
        token of the log, whose own is -1."""
        self._depths = np.zeros(slots, np.int64)
        """Most of those tokens that may stay."""

    def enter(self, new: NewSequence) -> None:
        """Start speculation for a new sequence."""
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
        """Stop speculation for these sequences."""
        self.limits[slots] = 0

    def propose(self, rows: BatchRows, budget: int) -> BatchRows:
        """Append drafts to the logs of decode rows, within their pages and limits, and at most
        `budget` tokens in total."""
        self.counts[:], self.seconds, self.trees = 0, 0.0, {}
        if self._proposer is None or not (requests := self._requests(rows, budget)):
            return rows
        begin = time.perf_counter()
        self._propose(requests, self._proposer)
        self.seconds = time.perf_counter() - begin
        return replace(rows, counts=rows.counts + self.counts[rows.slots])

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
        depths = self._depths[slots[some]]
        self._acceptance.observe(slots[some], depths, accepted[some])

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

    def _requests(self, rows: BatchRows, budget: int) -> list[DraftRequest]:
        # A row with more than one token is a prefill, or has tokens that its grammar forces.
        decoding = rows.slots[rows.samples & (rows.counts == 1) & (self.limits[rows.slots] > 0)]
        sequences, requests = self._sequences, list[DraftRequest]()
        lengths = sequences.lengths[decoding]
        room = np.minimum(self._tables.room(decoding), sequences.ends[decoding] - 1) - lengths
        room = np.clip(room, 0, self.limits[decoding])
        levels = np.searchsorted(self._totals, room, side="right")
        most = self._worth(decoding, levels, rows)
        columns = zip(decoding.tolist(), lengths.tolist(), most.tolist(), strict=True)
        for slot, length, count in columns:
            count = min(count, bisect_right(self._totals, budget))
            if count > 0:
                tokens = sequences.tokens[slot, :length]
                remaining = int(sequences.ends[slot]) - length
                requests.append(DraftRequest(slot, tokens, count, self._groups[slot], remaining))
                budget -= self._totals[count - 1]
        return requests

    def _worth(self, slots: Column, most: Column, rows: BatchRows) -> Column:
        """Number of drafts per slot that pay, at most `most`; of depths, if they are trees."""
        if self._costs is None or not len(slots):
            return most
        rates, num_tokens = self._acceptance.rates(slots), int(rows.counts.sum())
        drafting = None if self._proposer is None else self._proposer.costs
        lengths = draft_lengths(rates, most, num_tokens, self._costs, drafting, self._widths)
        self._acceptance.rest(slots[lengths == 0])
        return lengths

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
