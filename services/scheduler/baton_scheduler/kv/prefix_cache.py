"""Which page holds the keys of which token prefix.

A page's content is named by the hash of every token up to its end, so a name is found only behind
equal beginnings (automatic prefix caching as in vLLM, SOSP 2023, and SGLang, arXiv:2312.07104):

    root(tenant, salt) --block 0--> hash 0 --block 1--> hash 1 --block 2--> hash 2 ...
                                      |                   |                   |
                                   page 17             page 4              unknown: full pages end

Only full pages have names, and only once the result that computed them has been settled.

Behind the last named page, a page that begins like the next block is still of use: it is copied,
and the copy goes on by itself (copy on write). So pages are also known by the prefix that they go
on from and the tokens that they hold, full or not:

    hash 1 --> page 9: [5 6 7 8], page 23: [5 6 3]          wanted [5 6 3 4]: 3 tokens of page 23

Of a model with several groups of layers (`baton.kv.page_groups`), a page holds what one of them
keeps of its tokens, and its name says of which. A prefix can be gone on from where every group has
the pages that the next token sees: all before it, or those within a window.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import islice

import numpy as np

from baton.kv.page_groups import PageGroups
from baton.protocol import Submit
from baton.protocol.token_columns import block_hash, pack
from baton_scheduler.kv.block_table import BlockTable, Tables

_MOST_EVICTED = 65_536
"""Names that are remembered after their pages were given up; the oldest is forgotten first."""
_MOST_FORKS = 8
"""Pages behind one prefix that are compared with a block, the latest known first."""


def salt(submit: Submit) -> bytes:
    """What the chain of a sequence starts from: tenants and salts never share a page."""
    tenant = submit.tenant.encode()
    # Keys of tokens that saw both ways are of no use to those that do not.
    whole = submit.pooling is not None and submit.pooling.reach == "whole"
    return b"%b%d:%b%b" % (b"whole:" if whole else b"", len(tenant), tenant, submit.salt)


def group_key(hash: bytes, group: int) -> bytes:
    """The name of what a group of layers keeps of the block with this hash."""
    return hash + bytes((group,)) if group else hash


def longest_usable_prefix(
    has: Callable[[int, int], bool], groups: PageGroups, most: int, first: int = 0
) -> int:
    """Blocks, at least `first` and at most `most`, of the longest prefix that can be gone on from.

    `has(group, block)` says whether there is a page; those before block `first` are there.
    """
    windowed = groups.windowed
    for group in range(len(groups)):
        if group not in windowed:
            lacking = (block for block in range(first, most) if not has(group, block))
            most = next(lacking, most)
    blocks = most + 1
    while most < blocks and first < most:
        blocks = most
        most = min((_run(has, groups, g, most, first) for g in windowed), default=most)
    return most


def _run(
    has: Callable[[int, int], bool], groups: PageGroups, group: int, most: int, first: int
) -> int:
    """The largest number of blocks behind which a windowed group has all that a token sees."""
    block = most - 1
    while block >= max(first, groups.first(group, most * groups.page_size)):
        if not has(group, block):
            most = block
        block -= 1
    return most


class BlockHashes:
    """Hashes of a sequence's blocks, each computed once, when it is first asked for.

    Equal to `baton.protocol.token_columns.block_hashes(prompt + log, size, salt(submit))`, but a
    growing log does not start it anew.
    """

    def __init__(self, submit: Submit, log: array[int], size: int) -> None:
        self.size = size
        self._prompt, self._log = submit.tokens, log
        self._num_prompt = len(submit.tokens) // 4
        self._hashes = [block_hash(b"", salt(submit))]

    def at(self, block: int) -> bytes:
        """Hash of a block whose tokens exist; of block -1, the root."""
        while len(self._hashes) < block + 2:
            self.link(len(self._hashes) - 1)
        return self._hashes[block + 1]

    def content(self, start: int, end: int) -> bytes:
        """The tokens at these positions, as far as they exist, as an int32 column."""
        num_prompt = self._num_prompt
        if start >= num_prompt:
            return pack(self._log[start - num_prompt : end - num_prompt])
        tokens = self._prompt[4 * start : 4 * end]
        return tokens + pack(self._log[: end - num_prompt]) if end > num_prompt else tokens

    def link(self, block: int) -> tuple[bytes, bytes, bytes]:
        """(hash of a whole block, hash of all before it, its tokens)"""
        hashes = self._hashes
        tokens = self.content(block * self.size, (block + 1) * self.size)
        if len(hashes) == block + 1:
            assert len(tokens) == 4 * self.size, "a block has no name before its last token exists"
            hashes.append(block_hash(hashes[block], tokens))
        return self.at(block), hashes[block], tokens


class PrefixCache:
    """Pages by the hash of the prefix that ends in them, one page per hash, one hash per page; and
    by the prefix that they go on from, any number behind each."""

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._forks: dict[bytes, dict[int, bytes]] = {}
        """Prefix -> page -> the tokens whose keys the page begins with."""
        self._parents: dict[int, bytes] = {}
        self._evicted: dict[bytes, None] = {}
        self.changed: dict[int, None] = {}
        """Pages that have got a name, or lost one, since this was last cleared."""

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: object) -> bool:
        return page in self._hashes or page in self._parents

    def pages(self) -> set[int]:
        """All that are known by something."""
        return {*self._hashes, *self._parents}

    def match(self, chain: BlockHashes, most: int) -> list[int]:
        """Pages of the longest known prefix of at most `most` blocks, all of one group."""
        pages: list[int] = []
        for block in range(most):
            page = self._pages.get(chain.at(block))
            if page is None:
                break
            pages.append(page)
        return pages

    def known(self, chain: BlockHashes, most: int, groups: PageGroups) -> Tables:
        """Pages of the longest known prefix of at most `most` blocks that can be gone on from: of
        each group those that its next token sees. All end with the same block."""
        if groups.plain:
            return [BlockTable(0, self.match(chain, most))]
        pages = self._pages

        def has(group: int, block: int) -> bool:
            return group_key(chain.at(block), group) in pages

        end = longest_usable_prefix(has, groups, most)
        firsts = [groups.first(group, end * groups.page_size) for group in range(len(groups))]
        return [
            BlockTable(
                first, [pages[group_key(chain.at(block), group)] for block in range(first, end)]
            )
            for group, first in enumerate(firsts)
        ]

    def name(self, page: int) -> bytes | None:
        """The name of a page, if it has one."""
        return self._hashes.get(page)

    def knows(self, name: bytes) -> bool:
        """Whether a page has this name."""
        return name in self._pages

    def add(self, page: int, hash: bytes) -> bool:
        """Name a page. A prefix that another page holds already keeps that one, and a second page
        of equal content is of no use: it is forgotten, and the answer is False."""
        if hash in self._pages:
            self._leave(page)
            return False
        assert page not in self._hashes, "a page's content changed under its name"
        self._pages[hash] = page
        self._hashes[page] = hash
        self._evicted.pop(hash, None)
        self.changed[page] = None
        return True

    def fill(self, page: int, hash: bytes, prefix: bytes, tokens: bytes) -> None:
        """`add` and `begin` of a page that is full, which happens at every step."""
        if hash in self._pages:
            self._leave(page)
            return
        old = self._parents.get(page)
        assert page not in self._hashes, "a page's content changed under its name"
        assert old is None or old == prefix, "a page's content changed under its name"
        self._pages[hash], self._hashes[page] = page, hash
        self._evicted.pop(hash, None)
        self.changed[page] = None
        self._parents[page] = prefix
        self._forks.setdefault(prefix, {})[page] = tokens

    def begin(self, page: int, prefix: bytes, tokens: bytes) -> None:
        """The page holds the keys of these tokens (int32) behind the prefix, and maybe more."""
        old = self._parents.get(page)
        assert old is None or old == prefix, "a page's content changed under its name"
        self._parents[page] = prefix
        self._forks.setdefault(prefix, {})[page] = tokens

    def fork(self, prefix: bytes, tokens: bytes) -> tuple[int, int]:
        """(page, number): a page that goes on from the prefix with the longest beginning of
        `tokens` (int32), of those that were compared, and how many tokens that is; (-1, 0) when
        none does."""
        best, most = -1, 0
        for page, held in islice(reversed(self._forks.get(prefix, {}).items()), _MOST_FORKS):
            common = _common(held, tokens)
            if common > most:
                best, most = page, common
        return best, most

    def evict(self, page: int) -> bytes | None:
        """Forget a page that is wanted for something else, but remember that it was known.

        Returns its name, if it was full.
        """
        hash = self._hashes.get(page)
        self.forget(page)
        if hash is not None:
            self._evicted[hash] = None
            if len(self._evicted) > _MOST_EVICTED:
                del self._evicted[next(iter(self._evicted))]
        return hash

    def was_evicted(self, hash: bytes) -> bool:
        """Whether a page of this name was given up, not too long ago, and has not come back."""
        return hash in self._evicted

    def goes_on(self, prefix: bytes) -> bool:
        """Whether a page is known that goes on from this prefix."""
        return prefix in self._forks

    def forget(self, page: int) -> None:
        """Take a page's name away, if it has one."""
        hash = self._hashes.pop(page, None)
        if hash is not None:
            del self._pages[hash]
            self.changed[page] = None
        self._leave(page)

    def _leave(self, page: int) -> None:
        prefix = self._parents.pop(page, None)
        if prefix is not None:
            forks = self._forks[prefix]
            del forks[page]
            if not forks:
                del self._forks[prefix]

    def layout(self) -> bytes:
        """All names as bytes, for the state's digest."""
        names = pack(self._hashes, "I") + b"".join(self._hashes.values())
        forks = (tokens for pages in self._forks.values() for tokens in pages.values())
        parents = pack(self._parents, "I") + b"".join(self._parents.values())
        return names + parents + b"".join(forks) + pack([len(self._evicted)], "I")

    def check(self) -> None:
        """Assert that the two directions agree."""
        assert {page: hash for hash, page in self._pages.items()} == self._hashes
        forks = {page: hash for hash, pages in self._forks.items() for page in pages}
        assert forks == self._parents and all(self._forks.values())


def _common(one: bytes, other: bytes) -> int:
    """How many tokens (int32) two columns have in common from the start."""
    if one[:4] != other[:4]:  # Most of those that go on from a root.
        return 0
    length = min(len(one), len(other)) // 4
    differs = np.frombuffer(one, "<i4", length) != np.frombuffer(other, "<i4", length)
    return int(differs.argmax()) if differs.any() else length
