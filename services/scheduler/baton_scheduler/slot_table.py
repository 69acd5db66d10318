"""The sequences on one worker as columns over its slots, so that a step costs array operations.

The tokens of a row, by position (`num_known` counts the prompt and the log as of its entry):

    0 ......... num_scheduled ......... num_known .................. max_computed ... end
    | KV computed | still to prefill    |  decode, one position per step | the last token
    | or in flight|                     |  the input was just sampled    | needs no KV

    |<----------- capacity = (dropped + pages) * page_size ---->|      the least of all groups

Invariants: 0 <= num_scheduled <= max_computed; a scheduled position always lies below capacity.
Prefill stops at `prefill_limit` <= num_known while media behind it are being encoded elsewhere.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.protocol import QueueEstimate
from baton_scheduler.block_table import BlockTable, Tables, flat
from baton_scheduler.sequence import Sequence
from baton_scheduler.step_counts import StepCounts

Ints = NDArray[np.int64]


def _column(size: int) -> Ints:
    return np.zeros(size, np.int64)


class StartPages(NamedTuple):
    """The pages that a sequence starts with."""

    tables: Tables
    """For all known tokens, or the first of them."""
    page_size: int
    num_cached: int = 0
    """Tokens whose KV the pages hold, or receive as the sequence enters."""
    num_hashed: int = 0
    """Blocks that are already hashed; their pages are shared."""


class SlotTable:
    """Slots 0 .. num_slots - 1. The scheduler's copy of what the worker holds."""

    def __init__(self, num_slots: int, num_groups: int = 1) -> None:
        self.num_slots = num_slots
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.lease_id = _column(num_slots)
        """Lease of the slot, 0 if free. Never reused, so the result of an earlier lease is
        recognised even if the same sequence returns."""
        self._free = list(range(num_slots))
        self._last_lease = 0
        self._init_pages(num_slots, num_groups)
        self._init_progress(num_slots)
        self._init_drafts(num_slots)
        self._init_owners(num_slots)
        self._init_reports(num_slots)

    def _init_pages(self, num_slots: int, num_groups: int) -> None:
        self.pages: list[list[list[int]]] = [[[]] * num_groups for _ in range(num_slots)]
        """Pages by slot and page group, without the first `dropped` blocks."""
        self.dropped = np.zeros((num_groups, num_slots), np.int64)
        """[groups, slots]: number of leading blocks whose pages left the window and were freed."""
        self.capacity = _column(num_slots)
        self.num_hashed_blocks = _column(num_slots)
        """Number of pages that are full, confirmed and in the prefix cache."""
        self.num_confirmed = _column(num_slots)
        """Number of tokens whose KV is in pages according to results."""
        self.sources: dict[int, list[int]] = {}
        """Slot not yet entered -> per group, the page to copy to its first own page; that copy
        holds the cached tokens beyond whole pages."""
        self.pending_swap_in: dict[int, list[tuple[int, int]]] = {}
        """Slot not yet entered -> pairs (host page, own page) to swap in."""

    def _init_progress(self, num_slots: int) -> None:
        self.num_scheduled = _column(num_slots)
        self.num_known = _column(num_slots)
        self.prefill_limit = _column(num_slots)
        """Known tokens that may be prefilled: all, or those before media that are being encoded."""
        self.max_computed = _column(num_slots)
        self.generated = _column(num_slots)
        """Length of the log."""
        self.num_prompt = _column(num_slots)
        self.max_output_tokens = _column(num_slots)
        """Length of the log at which the sequence ends."""
        self.num_cached_tokens = _column(num_slots)
        """Number of tokens that were cached or copied when the sequence was placed."""
        self.pending_prefill_tokens = 0
        """Number of tokens that may be prefilled and are not planned yet."""
        self.step_counts = StepCounts(num_slots)

    def _init_drafts(self, num_slots: int) -> None:
        self.lookahead = _column(num_slots)
        """Most drafts of the row in one step."""
        self.variable_tokens = np.zeros(num_slots, bool)
        """A step may yield several tokens or none, since a grammar forces tokens or drafts are
        accepted."""
        self.num_variable_tokens = 0

    def _init_owners(self, num_slots: int) -> None:
        self.background = np.zeros(num_slots, bool)
        """The sequence is in the background: after all others."""
        self.num_background = 0
        self.tenant_number = _column(num_slots)
        self.gateway = _column(num_slots)
        self.gateways = Counter[int]()
        """Number of sequences per gateway."""
        self.handle = np.zeros(num_slots, "<u4")

    def _init_reports(self, num_slots: int) -> None:
        """What must still be sent to the worker, then to the gateways."""
        self.sent = np.zeros(num_slots, bool)
        """The worker knows the sequence."""
        self.num_unsent = 0
        """Number of sequences that the worker does not know yet."""
        self.unsent_drops: set[tuple[int, int]] = set()
        """(slot, group) whose dropped blocks the worker does not know yet."""
        self.pending_release: list[int] = []
        """Slots that the worker must release with its next plan."""
        self.awaiting_first_token = np.zeros(num_slots, bool)
        """No token has arrived since the sequence was placed."""
        self.num_awaiting_first_token = 0
        self.unreported_cached_tokens = _column(num_slots)
        """Cached prompt tokens to be reported to the gateway."""
        self.unreported: set[int] = set()
        """Slots whose cached tokens are not reported yet."""
        self.unsent_estimates: dict[int, QueueEstimate] = {}
        """Slot -> queue estimate not yet sent to the gateway."""

    def __len__(self) -> int:
        return self.num_slots - len(self._free)

    def occupied(self) -> list[int]:
        """Slots that hold a sequence, ascending."""
        return [int(slot) for slot in np.flatnonzero(self.lease_id)]

    def at(self, slot: int) -> Sequence:
        """Sequence in an occupied slot."""
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence

    def add(
        self,
        sequence: Sequence,
        gateway: int,
        pages: StartPages,
        max_model_len: int,
        drafts: int = 0,
    ) -> int:
        """Put a sequence into the lowest free slot and return the slot.

        The caller has found a free slot and taken the pages. `drafts` is the most draft tokens of a
        row per step.
        """
        slot = heapq.heappop(self._free)
        self._last_lease += 1
        self.lease_id[slot] = self._last_lease
        self.sequences[slot] = sequence
        self._set_pages(slot, pages)
        self._set_progress(slot, sequence, max_model_len, pages.num_cached)
        self._set_drafts(slot, sequence, drafts)
        self._set_owner(slot, sequence, gateway)
        self._set_reports(slot, sequence)
        return slot

    def _set_pages(self, slot: int, start: StartPages) -> None:
        tables, page_size, _, num_hashed = start
        self.pages[slot] = [table.pages for table in tables]
        self.dropped[:, slot] = [table.first for table in tables]
        self.capacity[slot] = min(table.end for table in tables) * page_size
        self.num_hashed_blocks[slot] = num_hashed
        self.num_confirmed[slot] = num_hashed * page_size

    def _set_progress(self, slot: int, sequence: Sequence, max_model_len: int, hit: int) -> None:
        end = min(sequence.num_prompt + sequence.sampling.max_tokens, max_model_len)
        pooled = sequence.pooling is not None
        num_known = end - 1 if sequence.scores_only and not pooled else sequence.num_tokens
        self.num_scheduled[slot] = self.num_cached_tokens[slot] = hit
        self.num_known[slot] = num_known
        self.prefill_limit[slot] = min(num_known, sequence.prefill_limit)
        self.max_computed[slot] = end if pooled else end - 1
        self.generated[slot] = len(sequence.log)
        self.num_prompt[slot] = sequence.num_prompt
        self.max_output_tokens[slot] = end - sequence.num_prompt
        self.pending_prefill_tokens += self.num_prefillable(slot)
        self.step_counts.start(slot)

    def _set_drafts(self, slot: int, sequence: Sequence, drafts: int) -> None:
        self.lookahead[slot] = sequence.num_drafts(drafts)
        self.variable_tokens[slot] = sequence.sampling.grammar is not None or self.lookahead[slot]
        self.num_variable_tokens += bool(self.variable_tokens[slot])

    def _set_owner(self, slot: int, sequence: Sequence, gateway: int) -> None:
        self.background[slot] = sequence.is_background
        self.num_background += sequence.is_background
        self.tenant_number[slot] = sequence.billed_tenant
        self.gateway[slot] = gateway
        self.gateways[gateway] += 1
        self.handle[slot] = sequence.handle

    def _set_reports(self, slot: int, sequence: Sequence) -> None:
        """Record what must still be sent to the worker and to the gateway."""
        self.sent[slot] = False
        self.num_unsent += 1
        self.awaiting_first_token[slot] = True
        self.num_awaiting_first_token += 1
        self.unreported_cached_tokens[slot] = sequence.cached or 0
        if sequence.cached:
            self.unreported.add(slot)
        if sequence.estimate is not None:
            self.unsent_estimates[slot] = sequence.estimate

    def remove(self, slot: int) -> tuple[Sequence, list[int]]:
        """Free a slot. Returns its sequence and its pages."""
        sequence, pages = self.at(slot), flat(self.tables(slot))
        sequence.phase_timer.add_steps(*self.step_counts.steps(slot))
        sequence.phase_timer.add_drafts(*self.step_counts.drafts(slot))
        self.take_first_tokens(np.array([slot]))
        self.pending_prefill_tokens -= self.num_prefillable(slot)
        if self.sent[slot]:
            self.pending_release.append(slot)
        else:
            self.num_unsent -= 1
        self.sequences[slot], self.pages[slot] = None, [[]] * len(self.dropped)
        self.unsent_estimates.pop(slot, None)
        self.unreported.discard(slot)
        self._forget_owner(int(self.gateway[slot]))
        self.unsent_drops = {row for row in self.unsent_drops if row[0] != slot}
        self.lease_id[slot] = 0
        self.num_variable_tokens -= bool(self.variable_tokens[slot])
        self.variable_tokens[slot] = False
        self.num_background -= bool(self.background[slot])
        self.background[slot] = False
        self.sent[slot] = False
        heapq.heappush(self._free, slot)
        return sequence, pages

    def _forget_owner(self, gateway: int) -> None:
        self.gateways[gateway] -= 1
        if not self.gateways[gateway]:
            del self.gateways[gateway]

    def written(self, slots: Ints) -> Ints:
        """Number of tokens whose KV is in pages once the last token of each log was sampled."""
        num_tokens: Ints = self.num_prompt.take(slots) + self.generated.take(slots)
        return num_tokens - 1

    def take_first_tokens(self, slots: Ints) -> list[int]:
        """Return the slots that waited for their first token, and stop waiting for it."""
        if not self.num_awaiting_first_token:
            return []
        fresh = slots[self.awaiting_first_token[slots]]
        self.awaiting_first_token[fresh] = False
        self.num_awaiting_first_token -= len(fresh)
        return [int(slot) for slot in fresh]

    def enter(self, slot: int) -> None:
        """Mark a sequence as sent to the worker, and its dropped blocks as unsent."""
        self.sent[slot] = True
        self.num_unsent -= 1
        without = np.flatnonzero(self.dropped[:, slot]).tolist()
        self.unsent_drops.update((slot, group) for group in without)

    def tables(self, slot: int) -> Tables:
        """Block tables of a slot by group. They share their lists with `pages`."""
        return [
            BlockTable(first, pages)
            for first, pages in zip(self.dropped[:, slot].tolist(), self.pages[slot], strict=True)
        ]

    def grow(self, slot: int, pages: list[list[int]], page_size: int) -> None:
        """Append new pages, group by group."""
        for mine, more in zip(self.pages[slot], pages, strict=True):
            mine += more
        if len(pages) == 1:
            self.capacity[slot] += len(pages[0]) * page_size
        else:
            self.capacity[slot] = min(table.end for table in self.tables(slot)) * page_size

    def grow_each(self, slots: list[int], pages: list[int], page_size: int) -> None:
        """With one page group: append a new page to each slot."""
        for slot, page in zip(slots, pages, strict=True):
            self.pages[slot][0].append(page)
        self.capacity[slots] += page_size

    def drop(self, slot: int, group: int, count: int) -> list[int]:
        """Remove the first `count` pages of a sequence that the worker knows, and return them."""
        pages = self.pages[slot][group][:count]
        del self.pages[slot][group][:count]
        self.dropped[group, slot] += count
        self.unsent_drops.add((slot, group))
        return pages

    def decoding(self) -> Ints:
        """Slots that decode and may take one more token, ascending."""
        ready = (
            (self.lease_id != 0)
            & (self.num_scheduled >= self.num_known)
            & (self.num_scheduled < self.max_computed)
        )
        return np.flatnonzero(ready)

    def num_prefillable(self, slot: int) -> int:
        """Number of tokens of a slot that may be prefilled and are not planned yet."""
        return max(0, int(self.prefill_limit[slot] - self.num_scheduled[slot]))

    def raise_prefill_limit(self, slot: int, limit: int) -> None:
        """Let more tokens of a slot be prefilled: more of its media are encoded."""
        self.pending_prefill_tokens -= self.num_prefillable(slot)
        self.prefill_limit[slot] = min(int(self.num_known[slot]), limit)
        self.pending_prefill_tokens += self.num_prefillable(slot)

    def prefilling(self) -> list[int]:
        """Slots with tokens that may be prefilled, in the order of service."""
        if not self.pending_prefill_tokens:
            return []
        slots = np.flatnonzero(
            (self.lease_id != 0) & (self.num_scheduled < self.prefill_limit)
        ).tolist()
        return sorted(slots, key=lambda slot: self.at(slot).key)

    def last(self) -> int:
        """The occupied slot that is last in the order of service."""
        return max(self.occupied(), key=lambda slot: self.at(slot).key)

    def layout(self) -> bytes:
        """All columns as bytes, for the state's digest."""
        columns = (
            self.lease_id,
            self.num_scheduled,
            self.num_known,
            self.prefill_limit,
            self.max_computed,
            self.capacity,
            self.generated,
            self.num_hashed_blocks,
            self.num_confirmed,
            self.unreported_cached_tokens,
            self.sent,
            self.dropped,
            self._pending(),
        )
        return b"".join(column.tobytes() for column in columns)

    def _pending(self) -> Ints:
        """What later plans still have to do: releases, copies, swaps and drops, with -1 between."""
        swaps = [
            number for pairs in self.pending_swap_in.values() for pair in pairs for number in pair
        ]
        sources = [*self.sources, *(page for pages in self.sources.values() for page in pages)]
        drops = [number for row in sorted(self.unsent_drops) for number in row]
        return np.array([*self.pending_release, -1, *sources, -1, *swaps, -1, *drops], np.int64)

    def check(self) -> None:
        """Assert the invariants above."""
        held = self.lease_id != 0
        assert sorted(self._free) == np.flatnonzero(~held).tolist()
        assert [s is not None for s in self.sequences] == held.tolist()
        assert not (
            held & (self.num_scheduled > np.minimum(self.max_computed, self.capacity))
        ).any()
        assert not (~held & (self.awaiting_first_token | self.variable_tokens | self.sent)).any()
        assert self.num_awaiting_first_token == np.count_nonzero(self.awaiting_first_token)
        assert self.num_variable_tokens == np.count_nonzero(self.variable_tokens)
        assert self.num_unsent == np.count_nonzero(held & ~self.sent)
        assert all(self.sent[slot] for slot, _ in self.unsent_drops)
        assert self.gateways == Counter(self.gateway[held].tolist())
        assert all(self.unreported_cached_tokens[slot] and held[slot] for slot in self.unreported)
        assert self.pending_prefill_tokens == int(
            np.maximum(self.prefill_limit - self.num_scheduled, 0)[held].sum()
        )
        for slot in self.occupied():
            sequence = self.at(slot)
            assert sequence.slot == slot and len(sequence.log) == self.generated[slot]
