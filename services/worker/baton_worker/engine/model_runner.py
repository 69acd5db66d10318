"""One step: a Plan becomes tensors, a forward pass, tokens, a Result."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.protocol import Logprobs, Plan, PromptLogprobs, Result
from baton.protocol.token_columns import unpack
from baton.protocol.vector_columns import join
from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers
from baton_worker.engine.input_batch import (
    BatchRows,
    Column,
    InputBatch,
    PlanError,
)
from baton_worker.engine.nan_quarantine import NanQuarantine
from baton_worker.engine.pooling_step import PoolingStep
from baton_worker.engine.spans import Spans
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.sampling import Sampler, concatenate, describe

_PROMPT_LOGITS = 16 * 1024 * 1024
"""Logits of a prompt that exist at one time, when its log-probabilities are wanted."""


_MOST_TOKENS = 2048
"""Most new tokens per step, by default."""


class CausalModel(Protocol):
    """What a runner needs of `baton_worker.models.Model`."""

    def forward(
        self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        """One ragged step: int64 [T] twice, to hidden states [T, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] to float32 [R, vocab]."""


class ModelRunner:
    """Runs plans on one model, one cache and one batch."""

    def __init__(
        self,
        model: CausalModel,
        cache: KVCache,
        batch: InputBatch,
        device: torch.device,
        pools: PoolingStep | None = None,
    ) -> None:
        self._model, self._cache, self.batch, self._device = model, cache, batch, device
        self._pools = PoolingStep(None) if pools is None else pools
        self._quarantine = NanQuarantine(cache)
        self._spans = Spans()
        self.buffers = Buffers(device)
        """What every step's indices are written to."""
        self.sampler = Sampler()
        self.host: HostPages | None = None
        """Where pages are swapped out to; None where there is no such memory."""
        self.ran: BatchRows | None = None
        """What the last step has run."""
        self.budget = _MOST_TOKENS
        """Most new tokens in one step, what grammars force included."""
        self._ended: float | None = None
        """When the last step ended, if a sequence was left to go on with."""

    @torch.inference_mode()
    def step(self, plan: Plan, turn: int = 0) -> Result:
        """Run one step of a plan: the first, unless `turn` says which one; all of them in order.

        Trouble of one row is in `Result.failed` and costs no other row.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        begin = time.perf_counter()
        gap = 0.0 if self._ended is None else begin - self._ended
        rows, outcome = self._begin(plan, turn)
        rows = self.batch.jump_forward(rows, self.budget - int(rows.counts.sum()))
        self.ran = rows
        if len(rows):
            self.batch.prefetch_masks(rows)
            hidden = self._forward(rows)
            self.batch.advance(rows)
            self._describe_prompts(rows, hidden, outcome)
            self._keep_forced(rows, hidden, outcome)
            self._choose(rows, hidden, outcome)
            if self.batch.pooling:
                self._pool(rows, hidden, outcome)
        self._note(outcome)
        outcome.wait(self.batch.stalled, self.batch.first_index(self.batch.stalled))
        end = time.perf_counter()
        self._ended = end if self.batch.going else None
        return outcome.result(plan, turn, end - begin, gap if len(rows) else 0.0)

    def _begin(self, plan: Plan, turn: int) -> tuple[BatchRows, _Outcome]:
        """The rows to run, and what is known of them before they do."""
        if turn:
            return self.batch.repeat(plan, turn), _Outcome({})
        rows, failed = self.batch.apply(plan)
        outcome = _Outcome(failed)
        self._swap(plan, outcome)
        self._copy(plan)
        self._spans.end(unpack(plan.release, "I"))
        self._spans.enter(plan.new_sequences)
        self._pools.enter(plan)
        return rows, outcome

    def _swap(self, plan: Plan, outcome: _Outcome) -> None:
        """Pages to host memory, then pages from there."""
        if not plan.swap_out and not plan.swap_in:
            return
        begin = time.perf_counter()
        out, back = unpack(plan.swap_out, "I").tolist(), unpack(plan.swap_in, "I").tolist()
        host = self.host
        if host is None or len(out) % 2 or len(back) % 2:
            raise PlanError("A plan swaps pages, but not pairwise or not of this worker.")
        if max([*out[::2], *back[1::2]]) >= self._cache.num_pages:
            raise PlanError(f"A plan swaps pages that are not among {self._cache.num_pages}.")
        if max([*out[1::2], *back[::2]]) >= host.num_pages:
            raise PlanError(f"A plan swaps host pages that are not among {host.num_pages}.")
        if out:
            host.store(out[::2], out[1::2])
        if back:
            host.load(back[::2], back[1::2])
        outcome.swap_seconds = time.perf_counter() - begin

    def _copy(self, plan: Plan) -> None:
        sources, targets = unpack(plan.copy_from, "I"), unpack(plan.copy_to, "I")
        if len(sources) != len(targets):
            raise PlanError("The copy columns of a plan disagree in length.")
        if sources:
            if max(*sources, *targets) >= self._cache.num_pages:
                raise PlanError(f"A plan copies pages that are not among {self._cache.num_pages}.")
            self._cache.copy(sources.tolist(), targets.tolist())
            for new in plan.new_sequences:
                if new.num_computed % self.batch.page_size:
                    self._quarantine.copied(self.batch, new.slot)

    def _forward(self, rows: BatchRows) -> Tensor:
        """Hidden states [T, hidden] of all new tokens."""
        return self._through(self._model, rows)

    def _through(self, model: CausalModel, rows: BatchRows) -> Tensor:
        batch, device = self.batch, self._device
        self._quarantine.clear(batch, rows)
        row, positions = rows.flat()
        tokens = batch.tokens[rows.slots[row], positions].astype(np.int64)
        attention = AttentionBatch.build_all(
            rows.counts,
            rows.starts,
            batch.tables,
            batch.page_size,
            device,
            slots=rows.slots,
            buffers=self.buffers,
        )
        return model.forward(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(positions).to(device),
            attention,
            self._cache,
        )

    def _choose(self, rows: BatchRows, hidden: Tensor, outcome: _Outcome) -> None:
        """Sample where the plan says so; set rows apart whose numbers are not finite."""
        last = hidden
        if len(hidden) != len(rows):
            last = hidden.index_select(0, self._tensor(np.cumsum(rows.counts) - 1))
        quiet = np.flatnonzero(~rows.samples)
        if len(quiet):
            good = _finite(last.index_select(0, self._tensor(quiet)).abs())
            self._fail(rows.slots[quiet[~good]], "hidden states", outcome)
            last = last.index_select(0, self._tensor(np.flatnonzero(rows.samples)))
        if not len(last):
            return
        slots, logits = rows.slots[rows.samples], self._model.logits(last)
        good = _finite(logits)
        if not good.all():
            self._fail(slots[~good], "logits", outcome)
            slots, logits = slots[good], logits[self._tensor(np.flatnonzero(good))]
        if len(slots):
            self._sample(slots, logits, outcome)

    def _sample(self, slots: Column, logits: Tensor, outcome: _Outcome) -> None:
        described = self.batch.parameters["logprobs"][slots] >= 0
        # A copy: adjustments change the logits in place, log-probabilities are of the raw ones.
        wanted = self._tensor(np.flatnonzero(described))
        raw = logits.index_select(0, wanted) if len(wanted) else None
        self.batch.adjustments(slots).apply(logits)
        possible = self._possible(slots, logits, outcome)
        if not possible.all():
            left = self._tensor(np.flatnonzero(possible))
            raw = raw if raw is None else raw[self._tensor(np.flatnonzero(possible[described]))]
            slots, logits, described = slots[possible], logits[left], described[possible]
        if len(slots):
            self._draw(slots, logits, raw, np.flatnonzero(described), outcome)

    def _draw(
        self,
        slots: Column,
        logits: Tensor,
        raw: Tensor | None,
        described: Column,
        outcome: _Outcome,
    ) -> None:
        parameters, index = self.batch.parameters[slots], self.batch.first_index(slots)
        tokens = self.sampler.sample(logits, parameters, index)
        forced = self.batch.forced[slots]
        outcome.slots, outcome.index, outcome.counts = slots, index - forced, forced + 1
        outcome.tokens = self._with_forced(slots, tokens)
        if raw is not None and len(described):
            counts, last = parameters["logprobs"][described], np.cumsum(forced + 1) - 1
            parts = self._describe_forced(slots, last, outcome)
            parts.append(describe(raw, tokens[described], counts, last[described]))
            outcome.logprobs = concatenate(parts)
        outcome.stopped = self.batch.accept(slots, tokens)

    def _with_forced(self, slots: Column, sampled: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The new tokens of each slot in the order of its log."""
        forced = self.batch.forced[slots]
        if not forced.any():
            return sampled
        logs = (self.batch.log(slot)[-n:] for slot, n in zip(slots, forced, strict=True) if n)
        return np.insert(np.concatenate(list(logs)), np.cumsum(forced), sampled)

    def _pool(self, rows: BatchRows, hidden: Tensor, outcome: _Outcome) -> None:
        """Finish the texts whose last token has run; set those apart that are not finite."""
        vectors = self._pools.step(self.batch, rows, hidden)
        bad = [slot for slot, numbers in vectors.items() if not np.isfinite(numbers).all()]
        outcome.vectors = {s: numbers for s, numbers in vectors.items() if s not in bad}
        self.batch.done[list(vectors)] = True
        if bad:
            self._fail(np.array(bad, np.int64), "vectors", outcome)

    def _possible(self, slots: Column, logits: Tensor, outcome: _Outcome) -> npt.NDArray[np.bool_]:
        """Which rows have a token left that may be sampled; the others fail."""
        possible = np.ones(len(slots), np.bool_)
        restricted = np.flatnonzero(self.batch.parameters["restricted"][slots])
        if len(restricted):
            every = len(restricted) == len(slots)
            part = logits if every else logits.index_select(0, self._tensor(restricted))
            possible[restricted] = _finite(part)
            for slot in slots[~possible].tolist():
                self._refuse(np.array([slot]), self.batch.dead_end(slot), outcome)
        return possible

    def _fail(self, slots: Column, what: str, outcome: _Outcome) -> None:
        for slot in slots.tolist():
            self._quarantine.add(self.batch, slot)
        self._refuse(slots, f"the model's {what} are not finite for this sequence", outcome)

    def _refuse(self, slots: Column, why: str, outcome: _Outcome) -> None:
        self.batch.done[slots] = True
        outcome.failed |= dict.fromkeys(slots.tolist(), why)

    def _describe_prompts(self, rows: BatchRows, hidden: Tensor, outcome: _Outcome) -> None:
        """Log-probabilities of prompt tokens: position p describes token p + 1."""
        wanted = self.batch.parameters["prompt_logprobs"][rows.slots]
        if (wanted < 0).all():
            return
        offsets = np.cumsum(rows.counts) - rows.counts
        for row in np.flatnonzero(wanted >= 0).tolist():
            slot, start = int(rows.slots[row]), int(rows.starts[row])
            end = min(start + int(rows.counts[row]), int(self.batch.num_prompt[slot]) - 1)
            if start < end:
                part = hidden[offsets[row] : offsets[row] + end - start]
                columns = self._describe(
                    part, self.batch.tokens[slot, start + 1 : end + 1], wanted[row]
                )
                outcome.prompt_logprobs.append(PromptLogprobs(slot, start + 1, columns))

    def _keep_forced(self, rows: BatchRows, hidden: Tensor, outcome: _Outcome) -> None:
        """Keep the states [N, H] that forced tokens follow, where log-probabilities are wanted."""
        forced = self.batch.forced[rows.slots]
        wanted = (forced > 0) & (self.batch.parameters["logprobs"][rows.slots] >= 0)
        ends = np.cumsum(rows.counts) - 1
        for row in np.flatnonzero(wanted).tolist():
            part = slice(int(ends[row] - forced[row]), int(ends[row]))
            outcome.before[int(rows.slots[row])] = hidden[part]

    def _describe_forced(self, slots: Column, last: Column, outcome: _Outcome) -> list[Logprobs]:
        """Log-probabilities of forced tokens; `last` says where the token of each slot stands that
        follows them."""
        parts = []
        for slot, end in zip(slots.tolist(), last.tolist(), strict=True):
            if (states := outcome.before.get(slot)) is not None:
                count, number = self.batch.parameters["logprobs"][slot], len(states)
                tokens = outcome.tokens[end - number : end]
                parts.append(self._describe(states, tokens, count, end - number))
        return parts

    def _describe(
        self, hidden: Tensor, tokens: npt.NDArray[np.int32], count: np.int64, start: int = 0
    ) -> Logprobs:
        """Describe N tokens from hidden [N, H], a bounded number of logits at a time. They are
        numbered from `start`."""
        parts, size = [], max(1, _PROMPT_LOGITS // self.batch.vocab_size)
        for first in range(0, len(tokens), size):
            some = tokens[first : first + size]
            logits = self._model.logits(hidden[first : first + size])
            numbers = np.arange(first, first + len(some)) + start
            parts.append(describe(logits, some, np.full(len(some), count), numbers))
        return concatenate(parts)

    def _note(self, outcome: _Outcome) -> None:
        self._spans.sampled(outcome.slots.tolist())
        self._spans.end((*outcome.stopped.tolist(), *outcome.vectors, *outcome.failed))

    def _tensor(self, numbers: Column) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


class _Outcome:
    """What a step has produced so far."""

    def __init__(self, failed: dict[int, str]) -> None:
        self.slots: Column = np.zeros(0, np.int64)
        self.index: Column = np.zeros(0, np.int64)
        self.counts: Column = np.zeros(0, np.int64)
        self.tokens: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self.before: dict[int, Tensor] = {}
        """By slot, the states that its forced tokens follow."""
        self.stopped: Column = np.zeros(0, np.int64)
        self.failed = failed
        self.swap_seconds = 0.0
        self.logprobs: Logprobs | None = None
        self.prompt_logprobs: list[PromptLogprobs] = []
        self.vectors: dict[int, npt.NDArray[np.float32]] = {}

    def wait(self, slots: Column, index: Column) -> None:
        """Say of these that they have not run: rows without a token, behind the others."""
        self.slots = np.concatenate((self.slots, slots))
        self.index = np.concatenate((self.index, index))
        self.counts = np.concatenate((self.counts, np.zeros_like(slots)))

    def result(self, plan: Plan, turn: int, duration: float, gap: float) -> Result:
        """The message that tells the scheduler. Times are in seconds."""
        return Result(
            epoch=plan.epoch,
            step=plan.step + turn,
            rows=self.slots.astype("<u4").tobytes(),
            first=self.index.astype("<u4").tobytes(),
            counts=self.counts.astype(np.uint8).tobytes(),
            tokens=self.tokens.astype("<i4").tobytes(),
            finished=dict.fromkeys(self.stopped.tolist(), "stop"),
            failed=self.failed,
            logprobs=self.logprobs,
            prompt_logprobs=tuple(self.prompt_logprobs),
            pooled=join({slot: v.astype("<f4").tobytes() for slot, v in self.vectors.items()}),
            duration_us=round(duration * 1e6),
            gap_us=round(gap * 1e6),
            swap_us=round(self.swap_seconds * 1e6),
        )


def _finite(values: Tensor) -> npt.NDArray[np.bool_]:
    """Which rows [R, N] hold neither NaN nor +inf, and something else than -inf: bool [R]."""
    finite: npt.NDArray[np.bool_] = values.amax(1).isfinite().cpu().numpy()
    return finite
