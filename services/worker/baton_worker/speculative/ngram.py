"""Prompt lookup (Saxena 2023): drafts are the tokens after the last occurrence of the n-gram at the
end of the sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baton_worker.speculative.proposer import (
    DraftRequest,
    DraftSampler,
    Proposer,
    ProposerContext,
    Tokens,
)

_NOTHING: Tokens = np.zeros(0, np.int32)


class NgramProposer(Proposer):
    """See `Proposer`. Looks in the sequence itself for the longest of its last n-grams that has
    occurred before, and there for the latest occurrence; it keeps nothing."""

    def __init__(self, context: ProposerContext) -> None:
        config = context.config
        self._longest, self._shortest = config.prompt_lookup_max, config.prompt_lookup_min

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        return [self._continuation(request.tokens, request.most) for request in requests]

    def _continuation(self, tokens: Tokens, most: int) -> Tokens:
        # Ends of the n-grams that agree with the last one, in the tokens before it.
        length = len(tokens)
        ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1
        best, size = ends[:0], 1
        while len(ends):
            if size >= self._shortest:
                best = ends
            if size == min(self._longest, length - 1):
                break
            ends = ends[ends > size]
            ends = ends[tokens[ends - 1 - size] == tokens[length - 1 - size]]
            size += 1
        return tokens[best[-1] : best[-1] + most].copy() if len(best) else _NOTHING
