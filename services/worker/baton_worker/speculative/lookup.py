"""Proposers that look drafts up in text that they have seen."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baton_worker.speculative.proposer import DraftRequest, DraftSampler, Proposer, Tokens

LONGEST_MATCH = 32
"""Tokens of a match that are counted."""


class Match(NamedTuple):
    """Where the end of a sequence stands in text that was seen before."""

    drafts: Tokens
    """The tokens that follow there."""
    length: int
    """Last tokens of the sequence that stand before them, at most `LONGEST_MATCH`: the more there
    are, the more drafts are accepted."""


NO_MATCH = Match(np.zeros(0, np.int32), 0)


class LookupProposer(Proposer):
    """A proposer whose drafts take negligible time. So as many as there is room for are looked up
    first, and those that save time are then chosen by the length of the match."""

    @abstractmethod
    def look_up(self, request: DraftRequest) -> Match:
        """A match of the end of a sequence with at most `most` drafts; `NO_MATCH` if there is
        none."""

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        return [self.look_up(request).drafts for request in requests]


def common_suffix(one: Tokens, other: Tokens, most: int) -> int:
    """Number of last tokens in which two texts agree, at most `most`."""
    most = min(len(one), len(other), most)
    differs = np.flatnonzero(one[len(one) - most :] != other[len(other) - most :])
    return most - 1 - int(differs[-1]) if len(differs) else most
