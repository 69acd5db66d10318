"""Log-probabilities of tokens that are not sampled: prompt tokens, and tokens that grammars
force."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from baton.protocol import Logprobs, PromptLogprobs
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.step_inputs import PromptSpan, StepInputs
from baton_worker.engine.forward.forward_pass import ForwardPass
from baton_worker.sampling import concatenate, describe

_PROMPT_LOGITS = 16 * 1024 * 1024
"""Logits that exist at one time."""


class LogprobStep:
    """Computes log-probabilities of tokens from the hidden states before them."""

    def __init__(self, forward: ForwardPass, vocab_size: int) -> None:
        self._forward, self._size = forward, max(1, _PROMPT_LOGITS // vocab_size)

    def prompts(self, inputs: StepInputs, hidden: Tensor) -> list[PromptLogprobs]:
        """Log-probabilities of requested prompt tokens of a step; hidden is [T, hidden]."""
        return [self._prompt(span, hidden) for span in inputs.prompt_spans]

    def _prompt(self, span: PromptSpan, hidden: Tensor) -> PromptLogprobs:
        indices = np.arange(span.first, span.first + len(span.tokens))
        columns = self._describe(hidden, indices, span.tokens, span.num_logprobs, 0)
        return PromptLogprobs(span.slot, span.start, columns)

    def forced(
        self, inputs: StepInputs, rows: LogitsRows, hidden: Tensor, wanted: npt.NDArray[np.int32]
    ) -> list[Logprobs]:
        """Log-probabilities of tokens that were forced before these rows sample, `wanted` of each.
        Tokens are numbered within the step: those of a row, then the one it samples. No row has
        both forced and drafted tokens.
        """
        counts = inputs.forced[rows.slots]
        if not counts.any():
            return []
        ends, parts = np.cumsum(counts + 1) - 1, []
        columns = (rows.indices, counts, ends, wanted)
        for index, count, end, number in zip(*(c.tolist() for c in columns), strict=True):
            if count and number >= 0:
                tokens = inputs.tokens[index - count + 1 : index + 1].astype(np.int32)
                before = np.arange(index - count, index)
                parts.append(self._describe(hidden, before, tokens, number, end - count))
        return parts

    def _describe(
        self,
        hidden: Tensor,
        indices: Column,
        tokens: npt.NDArray[np.int32],
        count: int,
        start: int,
    ) -> Logprobs:
        """Describe N tokens from hidden [T, H] at N indices, a bounded number of logits at a time.
        They are numbered from `start`."""
        parts = []
        for first in range(0, len(tokens), self._size):
            some = tokens[first : first + self._size]
            logits = self._forward.logits(hidden, indices[first : first + self._size])
            numbers = np.arange(first, first + len(some)) + start
            parts.append(describe(logits, some, np.full(len(some), count), numbers))
        return concatenate(parts)
