"""Page groups: layers that see the same part of a sequence share a block table.

A page holds `page_size` tokens of the layers of one group, and takes as many bytes in all groups:
so pages are alike, come from one pool, and belong to whichever group takes them (as in vLLM's
hybrid KV cache manager).

    position        0 ......................... length - window + 1 ...... length
    sees all        | page | page | page | page | page | page | page |
    sees a window   |      |      |      | page | page | page | page |
                      first .............. ^ the first block that any token to come can see

Scheduler and worker count by the same rules, and these are they.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PageGroups:
    """What each group of layers sees, and how many pages that takes."""

    windows: tuple[int, ...]
    """Per group, how many of its last tokens, itself included, a token sees; 0 means all."""
    page_size: int
    """Tokens per page."""
    chunk: int
    """Most new tokens of a sequence in one step."""
    windowed: tuple[int, ...] = field(init=False)
    """Groups that do not see everything."""
    plain: bool = field(init=False)
    """There is one group, and it sees everything."""

    def __post_init__(self) -> None:
        windowed = tuple(group for group, window in enumerate(self.windows) if window)
        object.__setattr__(self, "windowed", windowed)
        object.__setattr__(self, "plain", self.windows == (0,))

    def __len__(self) -> int:
        return len(self.windows)

    def first(self, group: int, length: int) -> int:
        """The first block that a token at position `length`, or any later one, sees."""
        window = self.windows[group]
        return max(0, length + 1 - window) // self.page_size if window else 0

    def most(self, group: int) -> int | None:
        """Blocks between the first token that the first one of a chunk sees and the chunk's end,
        at most; None where that is not bounded."""
        window = self.windows[group]
        return -(-(window - 1 + self.chunk) // self.page_size) + 1 if window else None

    def end(self, group: int, length: int, blocks: int) -> int:
        """Of a sequence of so many blocks, of whose tokens `length` have their keys, the block
        before which a group needs pages now: all, or those that the next chunk sees or fills."""
        most = self.most(group)
        return blocks if most is None else min(blocks, self.first(group, length) + most)

    def num_pages(self, blocks: int) -> int:
        """Pages of all groups that a sequence of so many blocks takes at a time, at most."""
        mosts = [self.most(group) for group in range(len(self))]
        return sum(blocks if most is None else min(blocks, most) for most in mosts)

    def longest(self, num_pages: int, max_length: int) -> int:
        """Tokens of the longest sequence, of at most `max_length`, that so many pages hold."""
        blocks = range(-(-max_length // self.page_size) + 1)
        fitting = bisect_right(blocks, num_pages, key=self.num_pages) - 1
        return min(max_length, fitting * self.page_size)
