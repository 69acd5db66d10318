"""One step: a Plan becomes tensors, a forward pass, tokens, a Result."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.protocol import Logprobs, Plan, PromptLogprobs, Result
from baton.tokens import unpack
from baton_worker.attention import AttentionBatch
from baton_worker.batch import Batch, Column, PlanError, Rows
from baton_worker.kv import KVCache
from baton_worker.quarantine import Quarantine
from baton_worker.sampling import concatenate, describe, sample
from baton_worker.spans import Spans

_PROMPT_LOGITS = 16 * 1024 * 1024
"""Logits of a prompt that exist at one time, when its log-probabilities are wanted."""


class CausalModel(Protocol):
    """What a runner needs of `baton_worker.models.Model`."""

    def forward(
        self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        """One ragged step: int64 [T] twice, to the final hidden states [T, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] to float32 [R, vocab]."""


class Runner:
    """Runs plans on one model, one cache and one batch."""

    def __init__(
        self, model: CausalModel, cache: KVCache, batch: Batch, device: torch.device
    ) -> None:
        self._model, self._cache, self.batch, self._device = model, cache, batch, device
        self._quarantine = Quarantine(cache)
        self._spans = Spans()

    @torch.inference_mode()
    def step(self, plan: Plan) -> Result:
        """Run one plan. Trouble of one row is in `Result.failed` and costs no other row.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        begin = time.perf_counter()
        rows, failed = self.batch.apply(plan)
        self._copy(plan)
        self._spans.end(unpack(plan.release, "I"))
        self._spans.enter(plan.enter)
        outcome = _Outcome(failed)
        if len(rows):
            hidden = self._forward(rows)
            self.batch.advance(rows)
            self._describe_prompts(rows, hidden, outcome)
            self._choose(rows, hidden, outcome)
        self._note(outcome)
        duration = round((time.perf_counter() - begin) * 1e6)
        return outcome.result(plan, duration)

    def _copy(self, plan: Plan) -> None:
        sources, targets = unpack(plan.copy_from, "I"), unpack(plan.copy_to, "I")
        if len(sources) != len(targets):
            raise PlanError("The copy columns of a plan disagree in length.")
        if sources:
            if max(*sources, *targets) >= self._cache.num_pages:
                raise PlanError(f"A plan copies pages that are not among {self._cache.num_pages}.")
            self._cache.copy(sources.tolist(), targets.tolist())

    def _forward(self, rows: Rows) -> Tensor:
        """Final hidden states [T, hidden] of all new tokens."""
        batch, device = self.batch, self._device
        self._quarantine.clear(batch, rows)
        row, positions = rows.flat()
        tokens = batch.tokens[rows.slots[row], positions].astype(np.int64)
        width = -(-int((rows.starts + rows.counts).max()) // batch.page_size)
        attention = AttentionBatch.build(
            rows.counts.tolist(),
            rows.starts.tolist(),
            batch.pages[rows.slots, :width],
            batch.page_size,
            device,
        )
        return self._model.forward(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(positions).to(device),
            attention,
            self._cache,
        )

    def _choose(self, rows: Rows, hidden: Tensor, outcome: _Outcome) -> None:
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
        tokens = sample(logits, parameters, index)
        if raw is not None and len(described):
            counts = parameters["logprobs"][described]
            outcome.logprobs = describe(raw, tokens[described], counts, described)
        outcome.slots, outcome.index, outcome.tokens = slots, index, tokens
        outcome.stopped = self.batch.accept(slots, tokens)

    def _possible(self, slots: Column, logits: Tensor, outcome: _Outcome) -> npt.NDArray[np.bool_]:
        """Which rows have a token left that may be sampled; the others fail."""
        possible = np.ones(len(slots), np.bool_)
        restricted = np.flatnonzero(self.batch.parameters["restricted"][slots])
        if len(restricted):
            possible[restricted] = _finite(logits.index_select(0, self._tensor(restricted)))
            self._refuse(slots[~possible], "its rules leave no token to sample", outcome)
        return possible

    def _fail(self, slots: Column, what: str, outcome: _Outcome) -> None:
        for slot in slots.tolist():
            self._quarantine.add(self.batch, slot)
        self._refuse(slots, f"the model's {what} are not finite for this sequence", outcome)

    def _refuse(self, slots: Column, why: str, outcome: _Outcome) -> None:
        self.batch.done[slots] = True
        outcome.failed |= dict.fromkeys(slots.tolist(), why)

    def _describe_prompts(self, rows: Rows, hidden: Tensor, outcome: _Outcome) -> None:
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

    def _describe(self, hidden: Tensor, tokens: npt.NDArray[np.int32], count: np.int64) -> Logprobs:
        """Describe N tokens from hidden [N, H], a bounded number of logits at a time."""
        parts, size = [], max(1, _PROMPT_LOGITS // self.batch.vocab_size)
        for first in range(0, len(tokens), size):
            some = tokens[first : first + size]
            logits = self._model.logits(hidden[first : first + size])
            numbers = np.arange(first, first + len(some))
            parts.append(describe(logits, some, np.full(len(some), count), numbers))
        return concatenate(parts)

    def _note(self, outcome: _Outcome) -> None:
        self._spans.sampled(outcome.slots.tolist())
        self._spans.end((*outcome.stopped.tolist(), *outcome.failed))

    def _tensor(self, numbers: Column) -> Tensor:
        return torch.from_numpy(numbers).to(self._device)


class _Outcome:
    """What a step has produced so far."""

    def __init__(self, failed: dict[int, str]) -> None:
        self.slots: Column = np.zeros(0, np.int64)
        self.index: Column = np.zeros(0, np.int64)
        self.tokens: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self.stopped: Column = np.zeros(0, np.int64)
        self.failed = failed
        self.logprobs: Logprobs | None = None
        self.prompt_logprobs: list[PromptLogprobs] = []

    def result(self, plan: Plan, duration_us: int) -> Result:
        """The message that tells the scheduler."""
        return Result(
            epoch=plan.epoch,
            step=plan.step,
            rows=self.slots.astype("<u4").tobytes(),
            first=self.index.astype("<u4").tobytes(),
            counts=b"\1" * len(self.slots),
            tokens=self.tokens.astype("<i4").tobytes(),
            finished=dict.fromkeys(self.stopped.tolist(), "stop"),
            failed=self.failed,
            logprobs=self.logprobs,
            prompt_logprobs=tuple(self.prompt_logprobs),
            duration_us=duration_us,
        )


def _finite(values: Tensor) -> npt.NDArray[np.bool_]:
    """Which rows [R, N] hold neither NaN nor +inf, and something else than -inf: bool [R]."""
    finite: npt.NDArray[np.bool_] = values.amax(1).isfinite().cpu().numpy()
    return finite
