"""SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975): drafts are the most frequent continuation
of a matching suffix, in the sequence and in earlier ones."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from baton_worker.speculative.lookup import LONGEST_MATCH, LookupProposer, Match
from baton_worker.speculative.proposer import DraftRequest, ProposerContext, Tokens
from baton_worker.speculative.suffix_index import SuffixIndex

_MOST_GROUPS = 256
"""Groups whose texts are kept when none of them runs."""


class SuffixProposer(LookupProposer):
    """See `LookupProposer`. One index for each group of sequences: groups share nothing, as in the
    prefix cache, so speed reveals nothing about texts of other groups."""

    def __init__(self, context: ProposerContext) -> None:
        self._config = context.config
        self._indices: OrderedDict[bytes, SuffixIndex] = OrderedDict()
        self._texts: dict[int, tuple[bytes, int]] = {}

    def look_up(self, request: DraftRequest) -> Match:
        """See `LookupProposer`."""
        index, config = self._index_of(request), self._config
        length, continuations = index.matches(request.tokens)
        most = min(request.most, int(length * config.suffix_decoding_max_spec_factor))
        least = config.suffix_decoding_min_token_prob
        return Match(_most_frequent(continuations, most, least), min(length, LONGEST_MATCH))

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        if slot in self._texts:
            group, text = self._texts.pop(slot)
            self._indices[group].end(text)

    def _index_of(self, request: DraftRequest) -> SuffixIndex:
        """The index of its group, extended by its new tokens."""
        if request.slot not in self._texts:
            index = self._index(request.group)
            self._texts[request.slot] = request.group, index.begin()
        group, text = self._texts[request.slot]
        index = self._indices[group]
        index.extend(text, request.tokens)
        return index

    def _index(self, group: bytes) -> SuffixIndex:
        if group not in self._indices:
            depth = self._config.suffix_decoding_max_tree_depth
            self._indices[group] = SuffixIndex(
                depth, self._config.suffix_decoding_max_cached_requests
            )
        self._indices.move_to_end(group)
        running = {group for group, _ in self._texts.values()}
        idle = [name for name in self._indices if name not in running and name != group]
        for name in idle[: max(0, len(self._indices) - _MOST_GROUPS)]:
            del self._indices[name]
        return self._indices[group]


def _most_frequent(continuations: list[Tokens], most: int, least: float) -> Tokens:
    """Step by step the token that follows most often, the latest of equals, while it is at least so
    probable given all steps."""
    drafts, remaining, total = list[int](), continuations[::-1], len(continuations)
    while len(drafts) < most:
        at = len(drafts)
        following = [int(text[at]) for text in remaining if at < len(text)]
        if not following:
            break
        token = max(following, key=following.count)
        if following.count(token) < least * total:
            break
        drafts.append(token)
        remaining = [text for text in remaining if at < len(text) and text[at] == token]
    return np.array(drafts, np.int32)
