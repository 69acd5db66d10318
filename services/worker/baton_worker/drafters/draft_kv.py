"""The KV of a drafter: pages of its own, in which each slot follows the log of its sequence."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from baton_worker.drafters.page_pool import PagePool
from baton_worker.kv_cache import KVCache
from baton_worker.speculative.proposer import Column, DraftRequest, Tokens

_HASH_BYTES = 16


class DraftKV:
    """Block tables by slot, and how many tokens of each have KV.

    What was drafted and accepted stays; from the first token that differs from the log on it is
    overwritten. Full pages are found again by the next sequence of the same group with the same
    prefix.

    Args:
        cache: the pages; spare ones are not given to sequences.
        max_num_seqs: slots.
        max_model_len: most tokens of a sequence.
    """

    def __init__(self, cache: KVCache, max_num_seqs: int, max_model_len: int) -> None:
        self._cache, self.page_size = cache, cache.page_size
        self._pool = PagePool(cache.num_pages)
        self.tables = np.zeros((1, max_num_seqs, -(-max_model_len // self.page_size)), np.int32)
        """int32 [1, slots, blocks], as `AttentionBatch.build_all` takes them."""
        self.computed = np.zeros(max_num_seqs, np.int64)
        """Tokens of each slot whose KV is in its pages."""
        self._tokens = np.zeros((max_num_seqs, max_model_len), np.int32)
        self._pages: dict[int, list[int]] = {}
        self._hashes: dict[int, list[bytes]] = {}
        """By slot: what its log begins with, block after block; first its group."""
        self._suspect = set[int]()
        """Pages in which numbers may not be finite: attention multiplies what it does not see by 0,
        which leaves a NaN."""

    def follow(self, request: DraftRequest) -> int:
        """Go back to what a sequence's log agrees with. Returns how many of its tokens have no KV,
        at least one."""
        slot, tokens = request.slot, request.tokens
        if slot not in self._pages:
            self._enter(request)
        confirmed = self.page_size * (len(self._hashes[slot]) - 1)
        end = min(int(self.computed[slot]), len(tokens) - 1)
        differs = np.flatnonzero(self._tokens[slot, confirmed:end] != tokens[confirmed:end])
        self.computed[slot] = confirmed + int(differs[0]) if len(differs) else end
        self._name_blocks(slot, tokens)
        return len(tokens) - int(self.computed[slot])

    def reserve(self, slot: int, length: int) -> bool:
        """Pages for this many tokens of a slot; False if there are none, or no slot is so long."""
        pages = self._pages[slot]
        if length > self._tokens.shape[1]:
            return False
        missing = -(-length // self.page_size) - len(pages)
        if missing <= 0:
            return True
        allocated = self._pool.take(missing)
        if allocated is None:
            return False
        for page in self._suspect.intersection(allocated):
            self._cache.clear(page)
        self._suspect.difference_update(allocated)
        self.tables[0, slot, len(pages) : len(pages) + missing] = allocated
        pages += allocated
        return True

    def advance(self, slots: Column, counts: Column, tokens: Column) -> None:
        """Record that these tokens of slots, `counts` of each, have KV."""
        first = 0
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            start = int(self.computed[slot])
            self._tokens[slot, start : start + count] = tokens[first : first + count]
            self.computed[slot] += count
            first += count

    def release(self, slot: int, *, broken: bool = False) -> None:
        """The sequence of a slot has gone; `broken`: its numbers may not be finite."""
        pages = self._pages.pop(slot, [])
        if broken:
            self._suspect.update(pages)
        self._pool.give_back(pages, broken=broken)
        self._hashes.pop(slot, None)
        self.computed[slot] = 0

    def _enter(self, request: DraftRequest) -> None:
        """Begin with the pages of the longest known prefix. At least one token is left to run."""
        slot, tokens, size = request.slot, request.tokens, self.page_size
        pages, hashes = list[int](), [request.group]
        for block in range((len(tokens) - 1) // size):
            prefix = _hash(hashes[-1], tokens[block * size : (block + 1) * size])
            if (page := self._pool.share(prefix)) is None:
                break
            pages.append(page)
            hashes.append(prefix)
        self._pages[slot], self._hashes[slot] = pages, hashes
        self.tables[0, slot, : len(pages)] = pages
        self.computed[slot] = end = len(pages) * size
        self._tokens[slot, :end] = tokens[:end]

    def _name_blocks(self, slot: int, tokens: Tokens) -> None:
        """Let others find the blocks of a log that are full and have KV."""
        hashes, size = self._hashes[slot], self.page_size
        for block in range(len(hashes) - 1, int(self.computed[slot]) // size):
            hashes.append(_hash(hashes[-1], tokens[block * size : (block + 1) * size]))
            self._pool.name(self._pages[slot][block], hashes[-1])


def _hash(before: bytes, tokens: Tokens) -> bytes:
    return blake2b(before + tokens.tobytes(), digest_size=_HASH_BYTES).digest()
