"""The sequences that a worker holds, as arrays with one row per slot.

    inputs = batch.prepare(plan)  ->  model, sampler, pooler  ->  batch.commit(outputs)

The scheduler owns slots and pages; a plan that contradicts the batch means that the two are out of
step, and is refused as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.protocol import NewSequence, Plan, Pooling
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.engine.batch.draft_tokens import NO_DRAFTS, DraftOptions, DraftTokens
from baton_worker.engine.batch.forced_tokens import ForcedTokens
from baton_worker.engine.batch.host_rows import HostRows
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.media_slots import MediaSlots
from baton_worker.engine.batch.plan_columns import Column, PlanError, column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.engine.batch.step_inputs import PromptSpan, StepInputs
from baton_worker.engine.batch.step_outputs import Committed, StepOutputs
from baton_worker.engine.batch.tree_rows import at_depth
from baton_worker.engine.multimodal.pixels import Pixels
from baton_worker.engine.multimodal_input import pixels_of
from baton_worker.lora.slots import AdapterSlots
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.sampling import Sampler
from baton_worker.structured_output.manager import StructuredOutputManager

_MOST_TOKENS = 2048
"""Most new tokens per step, by default."""


class BatchSizes(NamedTuple):
    """Sizes of a batch, and of the pages and the model that it is for."""

    max_num_seqs: int
    """Slots."""
    max_model_len: int
    """Most tokens of a sequence."""
    page_size: int
    """Tokens per page."""
    num_pages: int
    vocab_size: int
    windows: tuple[int, ...] = (0,)
    """Attention window of each page group."""
    max_num_batched_tokens: int = _MOST_TOKENS
    """Most new tokens in one step, forced and drafted ones included."""


class MediaInputs(NamedTuple):
    """What a model takes beside tokens."""

    image_shape: tuple[int, ...] | None = None
    """Of the image that is a sequence, for a model that embeds images."""
    tower: MediaTower | None = None
    """The encoder of the model, if it has one."""
    axes: int = 1
    """Position axes of each token."""


_TEXT = MediaInputs()


class InputBatch:
    """Slots: sequences, block tables, sampling state.

    Args:
        constraints: matchers of grammars; None: sequences with a grammar are refused.
        adapters: where adapters are; None: sequences with one are refused.
        drafting: how sequences speculate.
        sampler: what draws draft tokens.
    """

    def __init__(
        self,
        sizes: BatchSizes,
        *,
        constraints: StructuredOutputManager | None = None,
        media: MediaInputs = _TEXT,
        adapters: AdapterSlots | None = None,
        drafting: DraftOptions = NO_DRAFTS,
        sampler: Sampler | None = None,
    ) -> None:
        if constraints is None:
            constraints = StructuredOutputManager(None, sizes.vocab_size)
        rows, length = sizes.max_num_seqs, sizes.max_model_len
        self.sequences = SequenceStates(rows, length)
        self.tables = BlockTables(rows, length, sizes.page_size, sizes.num_pages, sizes.windows)
        self.sampling = SamplingState(self.sequences, sizes.vocab_size, constraints)
        parts = self.sequences, self.tables, self.sampling
        self.forced = ForcedTokens(*parts)
        self.drafts = DraftTokens(*parts, drafting, sampler)
        self.host_rows = HostRows(self.sequences, self.sampling, self.forced)
        """The sequences whose steps need the host."""
        self._pooling: dict[int, Pooling] = {}
        self._images: dict[int, Pixels] = {}
        self._adapters = adapters
        self._media = MediaSlots(media.tower, media.axes)
        self._image_shape, self._budget = media.image_shape, sizes.max_num_batched_tokens
        self._step: int | None = None

    def __len__(self) -> int:
        """Number of sequences, finished ones included."""
        return len(self.sequences)

    @property
    def going(self) -> bool:
        """True if some sequence is not known to have finished."""
        return self.sequences.going

    def prepare(self, plan: Plan, turn: int = 0) -> StepInputs:
        """Apply a plan, or continue an applied one, and build the inputs of its step `turn`,
        counted from 0. Each prepared step must be committed before the next. Grammar masks are
        computed in the background from here on.

        Raises:
            PlanError: the plan contradicts the batch, which is unusable afterwards.
        """
        self._follow(plan.step + turn)
        failed = {} if turn else self._apply(plan)
        rows, stalled = self._rows(plan, turn)
        rows = self.forced.jump_forward(rows, self._budget)
        rows = self.drafts.propose(rows, self._budget)
        if len(rows):
            self.sampling.prefetch_masks(rows.slots[rows.samples])
        return self._inputs(rows, failed, stalled)

    @property
    def needed_media(self) -> set[bytes]:
        """Digests of the media that sequences need in this step or after it."""
        return self._media.needed(self.sequences.computed)

    def advance(self, inputs: StepInputs) -> None:
        """Advance by a step that runs later: its sequences go on behind it in prompts alone."""
        self.sequences.advance(inputs.rows)

    def commit(self, outputs: StepOutputs, *, advanced: bool = False) -> Committed:
        """Apply the outputs of a prepared step: 0 to n tokens per slot. Forced and drafted tokens
        that are not among them leave the log and the pages. Slots that ended, failed or have their
        vector are finished. `advanced`: see `advance`.
        """
        sequences, slots = self.sequences, outputs.slots
        first = sequences.first_index(slots)
        if not advanced:
            sequences.advance(outputs.rows)
        sequences.append(slots, outputs.counts, outputs.tokens)
        if verified := len(outputs.accepted):
            self.sampling.follow(*outputs.accepted_drafts)
            self.drafts.observe(slots[:verified], outputs.drafted, outputs.accepted)
        grown = outputs.grown
        stopped: Column = grown[self.sampling.accept(grown, outputs.last_tokens)]
        sequences.done[stopped] = sequences.done[self.forced.over(grown)] = True
        if over := [*outputs.failed, *outputs.vectors]:
            sequences.done[over] = True
        if outputs.withdrawn:
            self.drafts.stop(np.array(outputs.withdrawn))
        return Committed(first, stopped)

    def expect(self, rows: BatchRows) -> Column:
        """Advance by a step that was launched and not read: each row that samples gets a token that
        is on the device only. Returns the positions of these tokens; see `resolve`."""
        self.sequences.advance(rows)
        return self.sequences.expect(rows.slots[rows.samples])

    def resolve(self, positions: Column, outputs: StepOutputs) -> Committed:
        """Apply the outputs of such a step: the tokens at those positions, one for each slot."""
        sequences, slots = self.sequences, outputs.slots
        sequences.resolve(slots, positions, outputs.tokens)
        stopped: Column = slots[self.sampling.accept(slots, outputs.tokens)]
        sequences.done[stopped] = True
        if outputs.failed:
            sequences.done[[*outputs.failed]] = True
        return Committed(positions - sequences.num_prompt[slots], stopped)

    def _follow(self, step: int) -> None:
        if self._step is not None and step != self._step + 1:
            raise PlanError(f"Plan {step} follows plan {self._step}: one in between is lost.")
        self._step = step

    def _apply(self, plan: Plan) -> dict[int, str]:
        """Release and enter sequences, append and drop pages; returns reasons of refusal by
        slot."""
        self._release(column(plan.release, "<u4"))
        refused = {new.slot: why for new in plan.new_sequences if (why := self._enter(new))}
        self.tables.apply(plan, self.sequences)
        return refused

    def _release(self, slots: Column) -> None:
        self.sequences.release(slots)
        for slot in slots.tolist():
            self._pooling.pop(slot, None)
            self._images.pop(slot, None)
        if self._adapters is not None:
            self._adapters.release(slots.tolist())
        self._media.release(slots)
        self.sampling.release(slots)
        self.forced.release(slots)
        self.drafts.release(slots)

    def _enter(self, new: NewSequence) -> str:
        """Enter a sequence. Returns why it cannot run, or an empty string."""
        slot, tokens = new.slot, self.sequences.enter(new)
        self.tables.enter(slot)
        if new.pooling is not None:
            self._pooling[slot] = new.pooling
        why = self.sampling.enter(new, tokens) or self._set_media(new, tokens)
        why = why or self._set_adapter(new)
        self.drafts.enter(new)
        self.forced.enter(slot, drafts=bool(self.drafts.limits[slot]))
        self.host_rows.enter(new)
        self.sequences.done[slot] = bool(why)
        return why

    def _set_media(self, new: NewSequence, tokens: npt.NDArray[np.int32]) -> str:
        if not new.media or self._image_shape is None:
            return self._media.enter(new.slot, new.media, tokens, new.num_computed)
        image = pixels_of(new.media, self._image_shape)
        if isinstance(image, str):
            return image
        self._images[new.slot] = image
        return ""

    def _set_adapter(self, new: NewSequence) -> str:
        if self._adapters is None:
            return "this worker serves no adapters (--enable-lora)" if new.adapter else ""
        return self._adapters.enter(new.slot, new.adapter)

    def _rows(self, plan: Plan, turn: int) -> tuple[BatchRows, Column]:
        """(rows of one step of the plan without finished sequences; slots that wait in it)."""
        rows, sequences = BatchRows.of(plan, turn), self.sequences
        sequences.check_held(rows.slots, "run")
        if len(rows) > 1 and np.bincount(rows.slots).max() > 1:
            raise PlanError("A slot runs twice in one plan.")
        if turn:
            rows = rows.going_on(plan, turn)
        rows, stalled = self.forced.in_place(rows.take(~sequences.done[rows.slots]))
        sequences.check_rows(rows, self.tables.room(rows.slots))
        return rows, stalled

    def _inputs(self, rows: BatchRows, failed: dict[int, str], stalled: Column) -> StepInputs:
        row, positions = rows.flat()
        forced, drafted = self.forced.counts, self.drafts.counts
        return StepInputs(
            rows=rows,
            tokens=self.sequences.tokens[rows.slots[row], positions].astype(np.int64),
            positions=self._media.positions(rows, at_depth(self.drafts.trees, rows, positions)),
            lengths=self.sequences.lengths[rows.slots] + (forced + drafted)[rows.slots],
            logits=self._logits(rows),
            tables=self.tables,
            forced=forced,
            prompt_spans=self._prompt_spans(rows),
            pooling=self._pooling,
            images=self._images,
            adapters=None if self._adapters is None else self._adapters.of(rows.slots[row]),
            media=self._media.rows(rows),
            seen=self._media.seen(rows),
            last_keys=self._media.last_keys(rows, positions),
            trees=self.drafts.trees,
            failed=failed,
            stalled=stalled,
        )

    def _logits(self, rows: BatchRows) -> LogitsRows:
        """Logits rows: the last token of each sampling row, or its last known token and all
        drafts."""
        lengths, indices, slots = rows.starts + rows.counts, rows.last, rows.slots
        drafted, drafts = self.drafts.counts[slots], None
        if np.count_nonzero(drafted):
            row = np.repeat(np.arange(len(rows)), drafted + 1)
            behind = (np.cumsum(drafted + 1) - 1)[row] - np.arange(len(row))
            lengths, indices, slots = lengths[row] - behind, indices[row] - behind, slots[row]
            places = np.minimum(lengths, self.sequences.tokens.shape[1] - 1)
            drafts = np.where(behind > 0, self.sequences.tokens[slots, places], -1)
        index = lengths - self.sequences.num_prompt[slots]
        samples = rows.samples if len(slots) == len(rows) else rows.samples[row]
        return LogitsRows(indices, slots, lengths, index, drafts).take(samples)

    def _prompt_spans(self, rows: BatchRows) -> tuple[PromptSpan, ...]:
        """Position p describes token p + 1."""
        counts = self.sampling.parameters["prompt_logprobs"][rows.slots]
        if not np.count_nonzero(counts >= 0):
            return ()
        spans, offsets = [], np.cumsum(rows.counts) - rows.counts
        for row in np.flatnonzero(counts >= 0).tolist():
            slot, start = int(rows.slots[row]), int(rows.starts[row])
            num_prompt = int(self.sequences.num_prompt[slot])
            end = min(start + int(rows.counts[row]), num_prompt - 1)
            if start < end:
                tokens = self.sequences.tokens[slot, start + 1 : end + 1]
                spans.append(
                    PromptSpan(slot, start + 1, int(offsets[row]), tokens, int(counts[row]))
                )
        return tuple(spans)
