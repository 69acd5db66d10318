"""One step: a Plan becomes tensors, a forward pass, tokens, a Result."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from baton.protocol import Plan, Result
from baton.protocol.token_columns import unpack
from baton_worker.engine.async_scheduling.async_forward import AsyncForward
from baton_worker.engine.async_scheduling.async_sampling import BROKEN, AsyncSampling
from baton_worker.engine.async_scheduling.launched_step import LaunchedStep
from baton_worker.engine.async_scheduling.prepared_step import PreparedStep
from baton_worker.engine.async_scheduling.staged_forward import StagedForward
from baton_worker.engine.async_scheduling.staged_step import StagedStep
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.input_batch import InputBatch
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import Committed, StepOutputs
from baton_worker.engine.forward.forward_pass import ForwardPass
from baton_worker.engine.multimodal.alignment_step import AlignmentStep
from baton_worker.engine.multimodal.encoder_step import NOT_FINITE, EncoderStep
from baton_worker.engine.nan_quarantine import NanQuarantine
from baton_worker.engine.outputs.pooling_step import PoolingStep
from baton_worker.engine.outputs.sampling_step import SamplingStep
from baton_worker.engine.page_moves import PageMoves
from baton_worker.engine.spans import Spans
from baton_worker.engine.speculation.tree_verification import keep_paths
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.pooling.pooler import Pooler
from baton_worker.sampling import Sampler


class ModelRunner:
    """Runs plans on one model, one cache and one batch.

    Args:
        forward: the model, whose KV is in `cache`.
        cache: the pages.
        batch: the sequences; it holds none yet.
        pooler: what makes vectors; None: only tokens are made.
        host: where pages are swapped out to; None where there is no such memory.
        sampler: what draws tokens.
        encoder: what encodes images in prompts; None for a model that sees none.
        alignment_filter: see `spec.Decoder`.
    """

    def __init__(
        self,
        forward: ForwardPass,
        cache: KVCache,
        batch: InputBatch,
        *,
        pooler: Pooler | None = None,
        host: HostPages | None = None,
        sampler: Sampler | None = None,
        encoder: EncoderStep | None = None,
        alignment_filter: int = 0,
    ) -> None:
        self.batch, self.forward, self._encoder = batch, forward, encoder
        self._cache = cache
        self._sampling = SamplingStep(forward, batch.sampling, sampler or Sampler())
        self._async_sampling = (
            AsyncSampling(forward, batch.sampling, sampler or Sampler())
            if isinstance(forward, AsyncForward)
            else None
        )
        self._pooling = PoolingStep(pooler)
        self._alignment = AlignmentStep(alignment_filter)
        self._quarantine = NanQuarantine(cache, batch.tables)
        self._moves = PageMoves(cache, host, self._quarantine, batch.tables.page_size)
        self._spans = Spans()
        self.ran: BatchRows | None = None
        """The rows of the last step."""
        self._ended: float | None = None
        """When the last step ended, if a sequence was left to go on with."""

    @torch.inference_mode()
    def step(self, plan: Plan, turn: int = 0) -> Result:
        """Run step number `turn` of a plan; the steps of a plan run in order. An error of one row
        is in `Result.failed` and affects no other row.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        prepared = self._prepare(plan, turn)
        inputs, outputs = prepared.inputs, prepared.outputs
        hidden = self._run(inputs, outputs) if len(inputs) else None
        outputs.wait(inputs.stalled)
        committed = self.batch.commit(outputs)
        self._end(inputs, outputs, committed)
        if hidden is not None:
            self.batch.drafts.observe_step(inputs, outputs, hidden, self._cache)
        end = time.perf_counter()
        self._ended = end if self.batch.going else None
        excluded = outputs.swap_seconds + self.batch.drafts.seconds
        self.batch.drafts.timed(inputs.rows, end - prepared.begin - excluded)
        return prepared.result(committed, prepared.begin, end)

    @torch.inference_mode()
    def begin(self, plan: Plan, turn: int = 0, *, ahead: bool = False) -> StagedStep:
        """Begin a step in the first stage of a pipeline, which `complete` runs in this one, the
        last. Steps complete in the order in which they begin.

        Args:
            ahead: the step before it is not complete.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        assert isinstance(self.forward, StagedForward), "this runner has no stages before it"
        prepared = self._prepare(plan, turn, ahead)
        inputs = prepared.inputs
        self._quarantine.clear(inputs.rows)
        run = self.forward.launch(inputs) if len(inputs) else None
        self.batch.advance(inputs)
        return StagedStep(prepared, run)

    @torch.inference_mode()
    def complete(self, step: StagedStep) -> Result:
        """Run a step in the last stage."""
        inputs, outputs = step.prepared.inputs, step.prepared.outputs
        if step.run is not None:
            self._sampling.step(inputs, step.run(), outputs)
        outputs.wait(inputs.stalled)
        committed = self.batch.commit(outputs, advanced=True)
        return self._finish(step.prepared, committed)

    @torch.inference_mode()
    def launch(self, plan: Plan, turn: int = 0, *, ahead: bool = False) -> LaunchedStep:
        """Begin a step that needs the host for nothing but its tokens (see `HostRows`), which
        `read` waits for.

        Args:
            ahead: the step before it has not been read.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        assert self._async_sampling is not None, "this runner's steps are not launched ahead"
        prepared = self._prepare(plan, turn, ahead)
        inputs = prepared.inputs
        self._quarantine.clear(inputs.rows)
        read = self._async_sampling.launch(inputs) if len(inputs) else None
        positions = self.batch.expect(inputs.rows)
        return LaunchedStep(prepared, positions, read)

    def read(self, step: LaunchedStep, following: LaunchedStep | None = None) -> Result:
        """Wait for a launched step; the steps before it have been read.

        Args:
            following: the next step, if that has been launched: what ends here gives nothing there.
        """
        outputs = step.prepared.outputs
        committed = self.batch.resolve(self._receive(step), outputs)
        ended = {*committed.stopped.tolist(), *outputs.failed}
        if following is not None:
            self._drop(ended, following)
        return self._finish(step.prepared, committed)

    def _receive(self, step: LaunchedStep) -> Column:
        """Put what the device has sampled into the outputs; returns the positions of the tokens."""
        if step.read is None:
            return step.positions
        numbers, inputs, outputs = (
            step.read.wait().numpy(),
            step.prepared.inputs,
            step.prepared.outputs,
        )
        slots, rows = inputs.logits.slots, inputs.rows
        tokens, finite = numbers[: len(slots)], numbers[len(slots) :] > 0
        quiet, live = rows.slots[~rows.samples], step.live(slots)
        outputs.break_down(quiet[~finite & step.live(quiet)], "hidden states")
        broken = live & (tokens == BROKEN)
        self._suspect_late(step, [*slots[tokens == BROKEN].tolist(), *quiet[~finite].tolist()])
        outputs.break_down(slots[broken], "logits")
        self.batch.sequences.retract(slots[broken])
        is_valid = live & ~broken
        outputs.slots, outputs.tokens = slots[is_valid], tokens[is_valid]
        outputs.counts = np.ones(len(outputs.slots), np.int64)
        positions: Column = step.positions[is_valid]
        return positions

    def _suspect_late(self, step: LaunchedStep, broken: list[int]) -> None:
        """A row of a sequence that had ended fails no request, but may have left NaN in its
        pages."""
        for slot in broken:
            self._quarantine.suspect(step.over.get(slot, []))

    def _drop(self, ended: set[int], following: LaunchedStep) -> None:
        """Rows of sequences that have ended, in a step that was launched before that was known."""
        inputs = following.prepared.inputs
        late = ended & set(inputs.rows.slots.tolist())
        following.over |= {slot: self.batch.tables.pages(slot) for slot in late}
        slots = inputs.logits.slots
        self.batch.sequences.retract(slots[np.isin(slots, [*ended])])

    def _prepare(self, plan: Plan, turn: int, ahead: bool = False) -> PreparedStep:
        """The inputs of a step; before the first step of a plan, its page moves and resets."""
        begin = time.perf_counter()
        gap = 0.0 if ahead or self._ended is None else begin - self._ended
        inputs = self.batch.prepare(plan, turn)
        outputs = StepOutputs(inputs)
        if not turn:
            self._begin(plan, outputs)
        return PreparedStep(plan, turn, inputs, outputs, begin, gap)

    def _finish(self, step: PreparedStep, committed: Committed) -> Result:
        """The result of a step that others may have run beside: its time counts from the end of
        the one before it."""
        self._end(step.inputs, step.outputs, committed)
        end = time.perf_counter()
        begin = step.begin if self._ended is None else max(step.begin, self._ended)
        self._ended = end if self.batch.going else None
        return step.result(committed, begin, end)

    def _begin(self, plan: Plan, outputs: StepOutputs) -> None:
        """Page moves and resets before the first step of a plan."""
        outputs.swap_seconds = self._moves.apply(plan)
        self._spans.end(unpack(plan.release, "I"))
        self._spans.enter(plan.new_sequences)
        self._pooling.enter(plan)
        self._alignment.enter(plan)

    def _run(self, inputs: StepInputs, outputs: StepOutputs) -> Tensor:
        """Run the model, then sample tokens and pool vectors. Returns the hidden states."""
        self._quarantine.clear(inputs.rows)
        if self._encoder is not None:
            inputs = self._encoder(inputs, self.batch.needed_media)
            work = self._encoder.last
            outputs.num_encoded, outputs.num_encoded_tokens, outputs.encoder_seconds = work
            outputs.refuse(self._encoder.broken_slots(inputs), NOT_FINITE)
        hidden = self.forward(inputs)
        self._sampling.step(inputs, hidden, outputs)
        if outputs.paths:
            keep_paths(self._cache, inputs, outputs)
        self._pooling.step(inputs, hidden, outputs)
        self._alignment.step(inputs, outputs)
        return hidden

    def _end(self, inputs: StepInputs, outputs: StepOutputs, committed: Committed) -> None:
        """Update state outside the batch after a step."""
        self.ran = inputs.rows
        for slot in outputs.broken:
            self._quarantine.add(slot)
        for slot in outputs.withdrawn:
            start = int(self.batch.sequences.computed[slot])
            row = int(np.flatnonzero(inputs.rows.slots == slot)[0])
            self._quarantine.erase(slot, start, start + int(inputs.rows.counts[row]))
        self._spans.sampled(outputs.slots.tolist())
        self._spans.end((*committed.stopped.tolist(), *outputs.vectors, *outputs.failed))
