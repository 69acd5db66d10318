"""Parts of a plan before they are packed: rows, pages to append, pages dropped, pages to copy."""

from __future__ import annotations

from typing import NamedTuple

from baton_scheduler.slot_table import Ints


class ScheduledRows(NamedTuple):
    """Rows of a step: slots and token counts, decode rows first."""

    slots: Ints
    counts: Ints
    decode: bool
    """All rows are decode rows."""
    waiting: bool = False
    """Prompts are waiting for tokens of this step, or have some."""


class NewPages(NamedTuple):
    """Pages to append, per slot and page group."""

    slots: list[int]
    groups: list[int]
    counts: list[int]
    numbers: list[int]
    """Page numbers, concatenated."""

    def add(self, slot: int, pages: list[list[int]]) -> None:
        """Append pages to a slot, group by group."""
        for group, group_pages in enumerate(pages):
            if group_pages:
                self.slots.append(slot)
                self.groups.append(group)
                self.counts.append(len(group_pages))
                self.numbers.extend(group_pages)

    def add_each(self, slots: list[int], numbers: list[int]) -> None:
        """Append one page of group 0 to each of these slots."""
        self.slots.extend(slots)
        self.groups.extend([0] * len(slots))
        self.counts.extend([1] * len(slots))
        self.numbers.extend(numbers)


class DroppedPages(NamedTuple):
    """Number of leading blocks without pages, per slot and page group."""

    slots: list[int]
    groups: list[int]
    counts: list[int]


class PageCopies(NamedTuple):
    """Pages to swap or copy before the rows run."""

    swap_out: list[int]
    """(page, host page), (page, host page), ..."""
    swap_in: list[int]
    """(host page, page), ..."""
    sources: list[int]
    targets: list[int]
    """Destination pages, parallel to the sources."""
