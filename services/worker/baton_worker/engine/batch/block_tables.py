"""Block tables: the pages of each slot, per page group."""

from __future__ import annotations

import numpy as np

from baton.kv.page_groups import PageGroups
from baton.protocol import Plan
from baton_worker.engine.batch.plan_columns import Column, PlanError, check_lengths, column
from baton_worker.engine.batch.sequence_states import SequenceStates


class BlockTables:
    """Page numbers by group, slot and block.

    Args:
        max_num_seqs: slots.
        max_model_len: maximum tokens of a sequence.
        page_size: tokens per page.
        num_pages: pages of the cache.
        windows: attention window of each group in tokens; 0: unlimited.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        page_size: int,
        num_pages: int,
        windows: tuple[int, ...] = (0,),
    ) -> None:
        self.page_size, self.num_cache_pages = page_size, num_pages
        self._groups = PageGroups(windows, page_size, max_model_len)
        blocks = -(-max_model_len // page_size)
        self.tables = np.zeros((len(windows), max_num_seqs, blocks), np.int32)
        """int32 [groups, slots, blocks]. A missing or freed page is replaced by the first page of
        the sequence: attention multiplies its values by 0, and a page of another sequence could
        hold NaN."""
        self._blocks = np.zeros((len(windows), max_num_seqs), np.int64)
        self.num_pages = np.zeros(max_num_seqs, np.int64)
        """Blocks for which every group has a page, or had one."""

    def room(self, slots: Column) -> Column:
        """Token capacity of the pages of these slots."""
        room: Column = self.num_pages[slots] * self.page_size
        return room

    def room_of(self, slot: int) -> int:
        """Token capacity of a slot's pages."""
        return int(self.num_pages[slot]) * self.page_size

    def pages(self, slot: int) -> list[int]:
        """All pages of a slot, group after group."""
        pages: list[int] = self.tables[:, slot, : self.num_pages[slot]].flatten().tolist()
        return pages

    def enter(self, slot: int) -> None:
        """Reset the slot for a new sequence without pages."""
        self._blocks[:, slot] = self.num_pages[slot] = 0

    def apply(self, plan: Plan, sequences: SequenceStates) -> None:
        """Append and drop the pages of a plan.

        Raises:
            PlanError: the plan contradicts the tables.
        """
        drops = self._drops(plan, sequences)
        for slot, group, count in drops:
            if not self._blocks[group, slot]:  # It entered without the blocks before its window.
                self._blocks[group, slot] = count
        self._append(plan, sequences)
        for slot, group, count in drops:
            self.tables[group, slot, :count] = self.tables[group, slot, count]

    def _append(self, plan: Plan, sequences: SequenceStates) -> None:
        slots, counts = column(plan.page_rows, "<u4"), column(plan.page_counts, "<u4")
        pages = column(plan.pages, "<u4")
        sequences.check_held(slots, "pages")
        if len(slots) != len(counts) or counts.sum() != len(pages):
            raise PlanError("The page columns of a plan disagree in length.")
        if pages.size and pages.max() >= self.num_cache_pages:
            raise PlanError(f"Page {pages.max()} is not one of {self.num_cache_pages}.")
        first, groups = 0, self._of_groups(plan.page_groups, slots)
        rows = zip(slots.tolist(), groups.tolist(), counts.tolist(), strict=True)
        for slot, group, count in rows:
            old = int(self._blocks[group, slot])
            if old + count > self.tables.shape[2]:
                raise PlanError(f"Slot {slot} gets more pages than its longest sequence needs.")
            self.tables[group, slot, old : old + count] = pages[first : first + count]
            self._blocks[group, slot] = old + count
            first += count
        self.num_pages[slots] = self._blocks[:, slots].min(0)

    def _of_groups(self, groups: bytes, slots: Column) -> Column:
        """Page group of each entry of page columns."""
        of = np.frombuffer(groups, np.uint8).astype(np.int64) if groups else np.zeros_like(slots)
        if len(of) != len(slots) or of.max(initial=0) >= len(self._groups):
            raise PlanError(f"A plan names groups of pages that are not {len(self._groups)}.")
        return of

    def _drops(self, plan: Plan, sequences: SequenceStates) -> list[tuple[int, int, int]]:
        """(slot, group, number of leading blocks without pages)."""
        slots, counts = column(plan.drop_rows, "<u4"), column(plan.drop_counts, "<u4")
        sequences.check_held(slots, "drop pages")
        check_lengths("drop", slots, counts)
        groups = self._of_groups(plan.drop_groups, slots)
        drops = list(zip(slots.tolist(), groups.tolist(), counts.tolist(), strict=True))
        for slot, group, count in drops:
            if count > self._groups.first(group, int(sequences.computed[slot])):
                raise PlanError("A plan drops pages that are still seen.")
        return drops
