"""Prompt lookup (Saxena 2023): drafts are the tokens after the last occurrence of the n-gram at the
end of the sequence."""

from __future__ import annotations

import numpy as np

from baton_worker.speculative.lookup import (
    LONGEST_MATCH,
    NO_MATCH,
    LookupProposer,
    Match,
    common_suffix,
)
from baton_worker.speculative.proposer import DraftRequest, ProposerContext, Tokens


class NgramProposer(LookupProposer):
    """See `LookupProposer`. Looks in the sequence itself for the longest of its last n-grams that
    has occurred before, and there for the latest occurrence; it keeps nothing."""

    def __init__(self, context: ProposerContext) -> None:
        config = context.config
        self._longest, self._shortest = config.prompt_lookup_max, config.prompt_lookup_min

    def look_up(self, request: DraftRequest) -> Match:
        """See `LookupProposer`."""
        tokens = request.tokens
        if (end := self._last_end(tokens)) is None:
            return NO_MATCH
        length = common_suffix(tokens[:end], tokens, LONGEST_MATCH)
        return Match(tokens[end : end + request.most].copy(), length)

    def _last_end(self, tokens: Tokens) -> int | None:
        """Where the latest of the longest n-grams ends that are those at the end."""
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
        return int(best[-1]) if len(best) else None
