"""Sampling of one step: hidden states to logits, adjustments, one token per row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.engine.batch.draft_sampler import DraftSampler
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.forward.forward_pass import ForwardPass
from baton_worker.engine.outputs.logprob_step import LogprobStep
from baton_worker.engine.speculation.tree_verification import TreeVerification, as_chain
from baton_worker.engine.speculation.verification import NO_TOKEN, accepted
from baton_worker.kernels.sampling import most_probable, refuses
from baton_worker.sampling import Sampler, concatenate, describe


class _Step(NamedTuple):
    """Shared state of the parts of a step."""

    inputs: StepInputs
    hidden: Tensor
    outputs: StepOutputs


class SamplingStep:
    """Samples the rows that the plan marks; rows with non-finite numbers fail. A failing row does
    not affect others.
    """

    def __init__(self, forward: ForwardPass, sampling: SamplingState, sampler: Sampler) -> None:
        self._forward, self._sampling, self.sampler = forward, sampling, sampler
        self._logprobs = LogprobStep(forward, sampling.vocab_size)
        self._trees = TreeVerification(DraftSampler(sampling.sequences, sampling, sampler))

    def step(self, inputs: StepInputs, hidden: Tensor, outputs: StepOutputs) -> None:
        """Tokens, log-probabilities and failures; hidden is [T, hidden], or [B, width]."""
        outputs.prompt_logprobs = self._logprobs.prompts(inputs, hidden)
        _check_others(inputs, hidden, outputs)
        rows = inputs.logits
        if not len(rows):
            return
        logits = self._forward.logits(hidden, rows.indices)
        good = _finite(logits)
        if not good.all():
            good = _finite_rows(rows, good, outputs)
            rows, logits = rows.take(good), logits[_indices(good, logits)]
        if inputs.trees:
            outputs.paths, on_path = self._trees.walk(inputs, rows, logits)
            rows = as_chain(inputs, rows.take(on_path), outputs.paths)
            logits = logits[_indices(on_path, logits)]
        if len(rows):
            self._sample(_Step(inputs, hidden, outputs), rows, logits)

    def _sample(self, step: _Step, rows: LogitsRows, logits: Tensor) -> None:
        described = self._sampling.parameters["logprobs"][rows.slots] >= 0
        # A copy: adjustments change the logits in place, log-probabilities are of the raw ones.
        raw = None
        if np.count_nonzero(described):
            raw = logits.index_select(0, _indices(described, logits))
        self._sampling.adjustments(rows).apply(logits)
        possible = self._possible(rows, logits, step.outputs)
        tokens = np.full(len(rows), NO_TOKEN, np.int32)
        if possible.all():
            tokens = self._draw(rows, logits)
        elif possible.any():
            tokens[possible] = self._draw(rows.take(possible), logits[_indices(possible, logits)])
        stays = accepted(rows, tokens)
        if stays.any():
            _keep(step, rows, tokens, stays)
            raw = raw if raw is None else raw[_indices(stays[described], logits)]
            self._describe(step, rows.take(stays), tokens[stays], raw)

    def _possible(
        self, rows: LogitsRows, logits: Tensor, outputs: StepOutputs
    ) -> npt.NDArray[np.bool_]:
        """Rows that have a token left to sample. A slot fails if its first row has none; rows after
        a draft may never be reached."""
        possible = np.ones(len(rows), np.bool_)
        restricted = self._sampling.parameters["restricted"][rows.slots]
        if np.count_nonzero(restricted):
            part = logits
            if not restricted.all():
                part = logits.index_select(0, _indices(restricted, logits))
            possible[restricted] = _finite(part)
            for slot in rows.slots[~possible & rows.first].tolist():
                self._sampling.strand(slot, outputs)
        return possible

    def _draw(self, rows: LogitsRows, logits: Tensor) -> npt.NDArray[np.int32]:
        return self.sampler.sample(logits, self._sampling.parameters[rows.slots], rows.index)

    def _describe(
        self, step: _Step, rows: LogitsRows, tokens: npt.NDArray[np.int32], raw: Tensor | None
    ) -> None:
        """Log-probabilities of sampled tokens of these rows, and of forced tokens before them."""
        counts = self._sampling.parameters["logprobs"][rows.slots]
        described = np.flatnonzero(counts >= 0)
        if raw is None or not len(described):
            return
        numbers = np.cumsum(np.where(rows.first, step.inputs.forced[rows.slots], 0) + 1) - 1
        parts = self._logprobs.forced(step.inputs, rows, step.hidden, counts)
        parts.append(describe(raw, tokens[described], counts[described], numbers[described]))
        step.outputs.logprobs = concatenate(parts)


def _finite_rows(
    rows: LogitsRows, good: npt.NDArray[np.bool_], outputs: StepOutputs
) -> npt.NDArray[np.bool_]:
    """Rows of slots with finite logits only. Other slots fail, except those with drafts: attention
    may have spread a draft's numbers, so these run again without drafts."""
    bad = np.unique(rows.slots[~good])
    drafted = np.isin(bad, rows.drafted)
    outputs.withdrawn += bad[drafted].tolist()
    outputs.break_down(bad[~drafted], "logits")
    is_finite: npt.NDArray[np.bool_] = ~np.isin(rows.slots, bad)
    return is_finite


def _keep(
    step: _Step,
    rows: LogitsRows,
    tokens: npt.NDArray[np.int32],
    stays: npt.NDArray[np.bool_],
) -> None:
    """Accepted tokens of the step, after forced ones."""
    outputs, accepted = step.outputs, rows.take(stays)
    first = np.flatnonzero(accepted.first)
    sampled = np.append(first[1:], len(accepted)) - first
    outputs.slots = accepted.slots[first]
    outputs.counts = step.inputs.forced[outputs.slots] + sampled
    outputs.tokens = _with_forced(step.inputs, accepted, tokens[stays])
    if step.inputs.trees or len(rows.drafted):
        verified = np.bincount(rows.drafted, minlength=len(step.inputs.forced))
        for slot, parents in step.inputs.trees.items():
            verified[slot] = len(parents) - 1
        outputs.drafted = verified[outputs.slots]
        outputs.accepted = np.where(outputs.drafted > 0, sampled - 1, 0)


def _check_others(inputs: StepInputs, hidden: Tensor, outputs: StepOutputs) -> None:
    """Rows that do not sample fail too, if the state of their last token is not finite."""
    quiet = np.flatnonzero(~inputs.rows.samples)
    if len(quiet):
        # A model that pools by itself has one state per row.
        last = quiet if len(hidden) == len(inputs) else inputs.rows.last[quiet]
        states = hidden.index_select(0, torch.from_numpy(last).to(hidden.device))
        outputs.break_down(inputs.rows.slots[quiet[~_finite(states.abs())]], "hidden states")


def _with_forced(
    inputs: StepInputs, rows: LogitsRows, sampled: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """The new tokens of each row in the order of its log: what was forced, then what is sampled."""
    forced = np.where(rows.first, inputs.forced[rows.slots], 0)
    if not np.count_nonzero(forced):
        return sampled
    ends = zip((rows.indices + 1).tolist(), forced.tolist(), strict=True)
    tokens = np.concatenate([inputs.tokens[end - count : end] for end, count in ends])
    return np.insert(tokens.astype(np.int32), np.cumsum(forced), sampled)


def _indices(chosen: npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    """Indices of true values, int64 [any], on the device of `like`."""
    return torch.from_numpy(np.flatnonzero(chosen)).to(like.device)


def _finite(values: Tensor) -> npt.NDArray[np.bool_]:
    """Rows [R, N] without NaN and +inf, and not all -inf: bool [R]."""
    finite: npt.NDArray[np.bool_]
    if values.dtype is torch.float32 and refuses(values.device) is None:
        finite = most_probable(values.contiguous()) >= 0
    else:
        finite = values.amax(1).isfinite().cpu().numpy()
    return finite
