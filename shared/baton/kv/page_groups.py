"""Page groups: layers with the same attention window share a block table.

A page holds `page_size` tokens of the layers of one group and has the same size in bytes in all
groups. So all pages come from one pool, and any page can serve any group (as in vLLM's hybrid KV
cache manager).

    position        0 ......................... length - window + 1 ...... length
    full attention  | page | page | page | page | page | page | page |
    window          |      |      |      | page | page | page | page |
                      first .............. ^ the first block that any future token attends to

Scheduler and worker both use these functions, so their page counts agree.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PageGroups:
    """Attention windows of all page groups, and the number of pages that sequences need."""

    windows: tuple[int, ...]
    """Attention window of each group in tokens, the token itself included; 0 means full attention.
    """
    page_size: int
    """Tokens per page."""
    chunk: int
    """Maximum number of new tokens of a sequence in one step."""
    windowed: tuple[int, ...] = field(init=False)
    """Groups with an attention window."""
    plain: bool = field(init=False)
    """There is one group, with full attention."""

    def __post_init__(self) -> None:
        windowed = tuple(group for group, window in enumerate(self.windows) if window)
        object.__setattr__(self, "windowed", windowed)
        object.__setattr__(self, "plain", self.windows == (0,))

    def __len__(self) -> int:
        return len(self.windows)

    def first(self, group: int, length: int) -> int:
        """First block that a token at position `length` or later attends to."""
        window = self.windows[group]
        return max(0, length + 1 - window) // self.page_size if window else 0

    def most(self, group: int) -> int | None:
        """Maximum number of blocks from the start of the window of a chunk's first token to the end
        of the chunk; None for full attention."""
        window = self.windows[group]
        return -(-(window - 1 + self.chunk) // self.page_size) + 1 if window else None

    def end(self, group: int, length: int, blocks: int) -> int:
        """End of the range of blocks that a group needs pages for, in a sequence of `blocks` blocks
        with `length` computed tokens: all blocks, or those that the next chunk attends to or fills.
        """
        most = self.most(group)
        return blocks if most is None else min(blocks, self.first(group, length) + most)

    def num_pages(self, blocks: int) -> int:
        """Maximum number of pages, over all groups, that a sequence of `blocks` blocks holds at a
        time."""
        mosts = [self.most(group) for group in range(len(self))]
        return sum(blocks if most is None else min(blocks, most) for most in mosts)

    def longest(self, num_pages: int, max_length: int) -> int:
        """Length in tokens of the longest sequence, at most `max_length`, that fits in `num_pages`
        pages."""
        blocks = range(-(-max_length // self.page_size) + 1)
        fitting = bisect_right(blocks, num_pages, key=self.num_pages) - 1
        return min(max_length, fitting * self.page_size)
