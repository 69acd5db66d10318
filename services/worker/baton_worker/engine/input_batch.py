"""The sequences that a worker holds, as arrays with one row per slot.

A slot's life: entered -> computed grows as its rows run, length as they sample -> done (a stop id,
or it failed; rows of plans already in flight are skipped) -> released.

    tokens[slot]   | prompt ................ | log ........ | unused      |
                   0                  num_prompt         length      max_model_len
    in pages       | ............... computed |   what is left of it is run next

The scheduler owns slots and pages; a plan that contradicts what is here means that the two have
lost each other, and is refused as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from baton.errors import BatonError, SettingsError
from baton.kv.page_groups import PageGroups
from baton.protocol import NewSequence, Plan, Pooling, Sampling
from baton_worker.engine.multimodal_input import Pixels, pixels_of
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
from baton_worker.structured_output.manager import StructuredOutputManager

Column = npt.NDArray[np.int64]

_NO_TOKEN = "its rules leave no token to sample"
_MOST_FORCED = 200
"""Forced tokens of one row in one step: with the one that is sampled they are counted in a byte."""


class PlanError(BatonError):
    """A plan contradicts what the worker holds; only a restart brings the two together again."""

    code = "bad_plan"


@dataclass(frozen=True, slots=True)
class BatchRows:
    """What one plan runs, in parallel columns [B] in the order of the plan."""

    slots: Column
    starts: Column
    counts: Column
    samples: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, chosen: npt.NDArray[np.bool_]) -> BatchRows:
        """The rows where `chosen` holds."""
        columns = (self.slots, self.starts, self.counts, self.samples)
        return BatchRows(*(column[chosen] for column in columns))  # type: ignore[arg-type]

    def flat(self) -> tuple[Column, Column]:
        """Row and position in its sequence of every new token: int64 [T] each."""
        rows = np.repeat(np.arange(len(self)), self.counts)
        ends = np.cumsum(self.counts)
        return rows, np.arange(len(rows)) - (ends - self.counts - self.starts)[rows]


class InputBatch:
    """Token logs, block tables and sampling parameters by slot."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        num_pages: int,
        vocab_size: int,
        windows: tuple[int, ...] = (0,),
        constraints: StructuredOutputManager | None = None,
        image_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.page_size, self._groups = page_size, PageGroups(windows, page_size, max_model_len)
        self._num_cache_pages, self.vocab_size = num_pages, vocab_size
        self.tokens = np.zeros((max_num_seqs, max_model_len), np.int32)
        blocks = -(-max_model_len // page_size)
        self.tables = np.zeros((len(windows), max_num_seqs, blocks), np.int32)
        """Block tables by group. Where there is no page, or it was let go of, the first that is
        left stands in its place: attention multiplies it by 0, and what others write to a foreign
        one could be NaN."""
        self.pages = self.tables[0]
        """Those of the first group."""
        self._blocks = np.zeros((len(windows), max_num_seqs), np.int64)
        self.num_pages = np.zeros(max_num_seqs, np.int64)
        """Blocks for which every group has a page, or had one."""
        self.lengths = np.zeros(max_num_seqs, np.int64)
        self.num_prompt = np.zeros(max_num_seqs, np.int64)
        self.computed = np.zeros(max_num_seqs, np.int64)
        self.held = np.zeros(max_num_seqs, np.bool_)
        self.done = np.zeros(max_num_seqs, np.bool_)
        self.parameters: Parameters = np.zeros(max_num_seqs, PARAMETERS)
        self._stops = np.full((max_num_seqs, 1), -1, np.int64)
        self.pooling: dict[int, Pooling] = {}
        """The slots of which not tokens but a vector is wanted."""
        self._image_shape = image_shape
        self.images: dict[int, Pixels] = {}
        """The slots that hold no text but an image."""
        self._bias: dict[int, tuple[Column, npt.NDArray[np.float32]]] = {}
        self._rules: dict[int, TokenRule] = {}
        self._constraints = (
            StructuredOutputManager(None, vocab_size) if constraints is None else constraints
        )
        self.jumps = np.zeros(max_num_seqs, np.bool_)
        """The sequence may run ahead of what the scheduler has planned: it decodes wherever it
        stands, whatever start a plan names."""
        self.stalled: Column = np.zeros(0, np.int64)
        """Slots that wait in this step: they have run ahead to the end of their pages."""
        self.forced = np.zeros(max_num_seqs, np.int64)
        """How many tokens a grammar has added to each log in this step, before one is sampled."""
        self._entered = np.zeros(max_num_seqs, np.int64)
        """Length of each sequence when it entered: it decodes once those are computed."""
        self._ends = np.zeros(max_num_seqs, np.int64)
        """Most tokens of each sequence."""
        self._step: int | None = None

    def __len__(self) -> int:
        """Sequences held, those that are done included."""
        return int(self.held.sum())

    def apply(self, plan: Plan) -> tuple[BatchRows, dict[int, str]]:
        """Release, enter, append and drop pages; return the rows to run and what was refused, by
        slot.

        Raises:
            PlanError: the plan does not fit what is held. The batch is not usable after that.
        """
        self._follow(plan.step)
        self._release(_column(plan.release, "<u4"))
        refused = {new.slot: why for new in plan.new_sequences if (why := self._enter(new))}
        drops = self._drops(plan)
        for slot, group, count in drops:
            if not self._blocks[group, slot]:  # It has entered without what nobody sees.
                self._blocks[group, slot] = count
        self._append(plan)
        for slot, group, count in drops:
            self.tables[group, slot, :count] = self.tables[group, slot, count]
        return self._rows(plan), refused

    def repeat(self, plan: Plan, turn: int) -> BatchRows:
        """The rows that run again in step `turn`, counted from 0, of a plan that was applied.

        Raises:
            PlanError: as `apply`.
        """
        self._follow(plan.step + turn)
        return self._rows(plan, turn)

    def _follow(self, step: int) -> None:
        if self._step is not None and step != self._step + 1:
            raise PlanError(f"Plan {step} follows plan {self._step}: one in between is lost.")
        self._step = step

    @property
    def going(self) -> bool:
        """Some sequence is not done, as far as is known here."""
        return bool((self.held & ~self.done).any())

    def _release(self, slots: Column) -> None:
        self._check_held(slots, "release")
        self.held[slots] = False
        for slot in slots.tolist():
            self.pooling.pop(slot, None)
            self.images.pop(slot, None)
            self._bias.pop(slot, None)
            self._rules.pop(slot, None)
            self._constraints.release(slot)
        self.jumps[slots] = False

    def _enter(self, new: NewSequence) -> str:
        """Take a sequence in. Returns why it cannot run, or nothing."""
        slot, tokens, room = new.slot, _column(new.tokens, "<i4"), self.tokens.shape[1]
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
        self._blocks[:, slot] = self.num_pages[slot] = 0
        self.computed[slot] = new.num_computed
        self.lengths[slot], self.num_prompt[slot] = len(tokens), new.num_prompt
        self.tokens[slot, : len(tokens)] = tokens
        self._entered[slot] = len(tokens)
        self._ends[slot] = min(new.num_prompt + new.sampling.max_tokens, room)
        if new.pooling is not None:
            self.pooling[slot] = new.pooling
        return self._configure(new, tokens)

    def _configure(self, new: NewSequence, tokens: Column) -> str:
        slot, sampling = new.slot, new.sampling
        ids = np.fromiter((*sampling.stop_ids, *sampling.logit_bias), np.int64)
        said = np.fromiter((*sampling.allowed_ids, *chain(*sampling.bad_words)), np.int64)
        for wanted in (tokens, ids, said):
            if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.vocab_size:
                self.done[slot] = True
                return f"a token id is outside the vocabulary of {self.vocab_size}"
        fill(self.parameters[slot], sampling)
        if new.num_prompt < len(tokens):
            # A continued sequence has had the log-probabilities of its prompt reported.
            self.parameters[slot]["prompt_logprobs"] = -1
        self._set_stops(slot, sampling.stop_ids)
        if sampling.logit_bias:
            values = np.fromiter(sampling.logit_bias.values(), np.float32)
            self._bias[slot] = ids[len(sampling.stop_ids) :], values
        why = self._set_rule(slot, sampling) or self._set_grammar(slot, sampling)
        why = why or self._set_media(new)
        self.done[slot] = bool(why)
        return why

    def _set_rule(self, slot: int, sampling: Sampling) -> str:
        try:
            rule = TokenRule.of(sampling)
        except SettingsError as error:
            return error.message
        if rule is not None:
            self._rules[slot] = rule
        return ""

    def _set_grammar(self, slot: int, sampling: Sampling) -> str:
        if sampling.grammar is None:
            return ""
        # Who has a say in which tokens there are may have forbidden the one spelling.
        spelled = not sampling.logit_bias and slot not in self._rules
        log = self.log(slot).tolist()
        why = self._constraints.enter(slot, sampling.grammar, log, spelled=spelled)
        self.jumps[slot] = not why and self._constraints.jumps(slot)
        return why

    def _set_media(self, new: NewSequence) -> str:
        if not new.media:
            return ""
        image = pixels_of(new.media, self._image_shape)
        if isinstance(image, str):
            return image
        self.images[new.slot] = image
        return ""

    def _set_stops(self, slot: int, ids: tuple[int, ...]) -> None:
        missing = len(ids) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[slot] = -1
        self._stops[slot, : len(ids)] = ids

    def _append(self, plan: Plan) -> None:
        slots, counts = _column(plan.page_rows, "<u4"), _column(plan.page_counts, "<u4")
        pages = _column(plan.pages, "<u4")
        self._check_held(slots, "pages")
        if len(slots) != len(counts) or counts.sum() != len(pages):
            raise PlanError("The page columns of a plan disagree in length.")
        if pages.size and pages.max() >= self._num_cache_pages:
            raise PlanError(f"Page {pages.max()} is not one of {self._num_cache_pages}.")
        first, groups = 0, self._of_groups(plan.page_groups, slots)
        rows = zip(slots.tolist(), groups.tolist(), counts.tolist(), strict=True)
        for slot, group, count in rows:
            old = int(self._blocks[group, slot])
            if old + count > self.tables.shape[2]:
                raise PlanError(f"Slot {slot} gets more pages than its longest sequence needs.")
            self.tables[group, slot, old : old + count] = pages[first : first + count]
            self._blocks[group, slot] = old + count
            first += count
        self.num_pages[slots] = self._blocks[:, slots].min(0)

    def _of_groups(self, groups: bytes, slots: Column) -> Column:
        """The group of each row of some columns about pages."""
        of = np.frombuffer(groups, np.uint8).astype(np.int64) if groups else np.zeros_like(slots)
        if len(of) != len(slots) or of.max(initial=0) >= len(self._groups):
            raise PlanError(f"A plan names groups of pages that are not {len(self._groups)}.")
        return of

    def _drops(self, plan: Plan) -> list[tuple[int, int, int]]:
        """(slot, group, count): how many blocks at its beginning a sequence has no pages for."""
        slots, counts = _column(plan.drop_rows, "<u4"), _column(plan.drop_counts, "<u4")
        self._check_held(slots, "drop pages")
        if len(slots) != len(counts):
            raise PlanError("The drop columns of a plan disagree in length.")
        groups = self._of_groups(plan.drop_groups, slots)
        drops = list(zip(slots.tolist(), groups.tolist(), counts.tolist(), strict=True))
        for slot, group, count in drops:
            if count > self._groups.first(group, int(self.computed[slot])):
                raise PlanError("A plan drops pages that are still seen.")
        return drops

    def _rows(self, plan: Plan, turn: int = 0) -> BatchRows:
        """The plan's rows in one of its steps, less those of sequences that are done."""
        rows = BatchRows(
            _column(plan.rows, "<u4"),
            _column(plan.num_computed, "<u4") + turn,
            _column(plan.num_scheduled, "<u4"),
            np.frombuffer(plan.samples, np.uint8) > 0,
        )
        if not len(rows.slots) == len(rows.starts) == len(rows.counts) == len(rows.samples):
            raise PlanError("The row columns of a plan disagree in length.")
        self._check_held(rows.slots, "run")
        if len(rows) > 1 and np.bincount(rows.slots).max() > 1:
            raise PlanError("A slot runs twice in one plan.")
        if turn:
            rows = rows.take(self._going_on(plan, turn, rows))
        rows = self._in_place(rows.take(~self.done[rows.slots]))
        self._check_rows(rows)
        return rows

    def _in_place(self, rows: BatchRows) -> BatchRows:
        """The rows where they are, and not where the scheduler takes those for that run ahead; less
        those that have no page to go on in: they are `stalled`."""
        slots = rows.slots
        ahead = self.jumps[slots] & (self.computed[slots] >= self._entered[slots])
        self.stalled = slots[:0]
        if not ahead.any():
            return rows
        starts = np.where(ahead, self.computed[slots], rows.starts)
        full = ahead & (starts + rows.counts > self.num_pages[slots] * self.page_size)
        self.stalled = slots[full]
        return replace(rows, starts=starts).take(~full)

    def jump_forward(self, rows: BatchRows, budget: int) -> BatchRows:
        """Let the rows that sample take in what their grammars force, as far as their pages and
        their limits go, and no more tokens than `budget` in all."""
        self.forced[:] = 0
        for row in np.flatnonzero(self.jumps[rows.slots] & rows.samples).tolist():
            slot = int(rows.slots[row])
            length = int(self.lengths[slot])
            room = min(int(self.num_pages[slot]) * self.page_size, int(self._ends[slot]) - 1)
            most = min(room - length, budget, _MOST_FORCED)
            tokens = self._constraints.run(slot, self._stops[slot].tolist(), most)
            self.tokens[slot, length : length + len(tokens)] = tokens
            self.lengths[slot] += len(tokens)
            self.forced[slot] = len(tokens)
            budget -= len(tokens)
        return replace(rows, counts=rows.counts + self.forced[rows.slots])

    def _going_on(self, plan: Plan, turn: int, rows: BatchRows) -> npt.NDArray[np.bool_]:
        """Which of a plan's rows have a turn of this number."""
        turns = _column(plan.steps_per_row, "<u4")
        if len(turns) != len(rows) or turns.max(initial=0) < plan.num_steps:
            raise PlanError("The turns of a plan do not match its rows and steps.")
        chosen = turns > turn
        if (chosen & ~(rows.samples & (rows.counts == 1))).any():
            raise PlanError("A plan repeats a row that does not decode.")
        return chosen

    def _check_rows(self, rows: BatchRows) -> None:
        slots, ends = rows.slots, rows.starts + rows.counts
        lengths, computed = self.lengths[slots], self.computed[slots]
        problems = {
            "starts elsewhere than where it stopped": computed != rows.starts,
            "runs no token": rows.counts == 0,
            "runs tokens that do not exist yet": ends > lengths,
            "runs beyond its pages": ends > self.num_pages[slots] * self.page_size,
            "samples before its last token": rows.samples & (ends < lengths),
            "samples beyond the longest sequence": rows.samples & (lengths >= self.tokens.shape[1]),
        }
        for problem, where in problems.items():
            if where.any():
                raise PlanError(f"Slot {slots[where.argmax()]} {problem}.")

    def _check_held(self, slots: Column, what: str) -> None:
        if slots.size and (slots.max() >= len(self.held) or not self.held[slots].all()):
            raise PlanError(f"A plan names slots to {what} that hold no sequence.")

    def first_index(self, slots: Column) -> Column:
        """Position in its log of the token that each slot samples next."""
        index: Column = self.lengths[slots] - self.num_prompt[slots]
        return index

    def advance(self, rows: BatchRows) -> None:
        """Mark the KV of these rows' tokens as computed."""
        self.computed[rows.slots] = rows.starts + rows.counts

    def accept(self, slots: Column, tokens: npt.NDArray[np.int32]) -> Column:
        """Append one token to each log; mark and return the slots that have ended: by a stop id,
        or because their grammar is complete and allows nothing more."""
        self.tokens[slots, self.lengths[slots]] = tokens
        self.lengths[slots] += 1
        ended = (self._stops[slots] == tokens[:, None]).any(1)
        if self._constraints:
            over = self._constraints.accept(slots[~ended].tolist(), tokens[~ended].tolist())
            ended |= np.isin(slots, over)
        stopped: Column = slots[ended]
        self.done[stopped] = True
        self.done[slots[self.jumps[slots] & (self.lengths[slots] >= self._ends[slots])]] = True
        return stopped

    def prefetch_masks(self, rows: BatchRows) -> None:
        """Begin to compute what grammars allow after these rows, beside their forward pass."""
        if self._constraints:
            self._constraints.prefetch_masks(rows.slots[rows.samples].tolist())

    def dead_end(self, slot: int) -> str:
        """Why a slot has no token left to sample."""
        error = self._constraints.error(slot) if self._constraints else ""
        return f"its grammar cannot be followed any further: {error}" if error else _NO_TOKEN

    def adjustments(self, slots: Column) -> Adjustments:
        """What must be done to the logits of these slots before a choice."""
        parameters = self.parameters[slots]
        forbidden = self.first_index(slots) < parameters["min_tokens"]
        return Adjustments(
            self._biases(slots, parameters) if self._bias else None,
            self._forbidden(slots, forbidden) if forbidden.any() else None,
            self._history(slots, parameters) if parameters["penalised"].any() else None,
            self._rules_of(slots) if self._rules else None,
            self._constraints.mask(slots.tolist(), self._stops[slots])
            if self._constraints
            else None,
        )

    def log(self, slot: int) -> npt.NDArray[np.int32]:
        """The tokens that a slot has produced, a view."""
        return self.tokens[slot, self.num_prompt[slot] : self.lengths[slot]]

    def _rules_of(self, slots: Column) -> TokenRules | None:
        ruled = [(row, slot) for row, slot in enumerate(slots.tolist()) if slot in self._rules]
        if not ruled:
            return None
        return TokenRules(
            [row for row, _ in ruled],
            [self._rules[slot] for _, slot in ruled],
            [self.log(slot) for _, slot in ruled],
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
        stops = self._stops[slots[chosen]]
        row, column = np.nonzero(stops >= 0)
        values = np.full(len(row), -np.inf, np.float32)
        return Entries(chosen[row], stops[row, column], values)

    def _history(self, slots: Column, parameters: Parameters) -> History:
        rows = np.flatnonzero(parameters["penalised"])
        slots = slots[rows]
        lengths = self.lengths[slots][:, None]
        tokens = self.tokens[slots, : int(lengths.max())].astype(np.int64)
        position = np.arange(tokens.shape[1])
        tokens = np.where(position < lengths, tokens, tokens[:, :1])
        sampled = (position >= self.num_prompt[slots][:, None]) & (position < lengths)
        return History(rows, tokens, sampled.astype(np.float32), parameters[rows])


def _column(data: bytes, kind: str) -> Column:
    try:
        return np.frombuffer(data, kind).astype(np.int64)
    except ValueError as error:
        raise PlanError(f"A column of a plan is cut off: {error}.") from error
