"""Which page holds the keys of which token prefix.

A page's content is named by the hash of every token up to its end, so a name is found only behind
equal beginnings (automatic prefix caching as in vLLM, SOSP 2023, and SGLang, arXiv:2312.07104):

    root(tenant, salt) --block 0--> hash 0 --block 1--> hash 1 --block 2--> hash 2 ...
                                      |                   |                   |
                                   page 17             page 4              unknown: the hit ends

Only full pages have names, and only once the result that computed them has been settled.
"""

from __future__ import annotations

from array import array

from baton.protocol import Submit
from baton.tokens import block_hash, pack


def salt(submit: Submit) -> bytes:
    """What the chain of a sequence starts from: tenants and salts never share a page."""
    tenant = submit.tenant.encode()
    return b"%d:%b%b" % (len(tenant), tenant, submit.salt)


class Chain:
    """Hashes of a sequence's blocks, each computed once, when it is first asked for.

    Equal to `baton.tokens.block_hashes(prompt + log, size, salt(submit))`, but a growing log does
    not start it anew.
    """

    def __init__(self, submit: Submit, log: array[int], size: int) -> None:
        self.size = size
        self._prompt, self._log = submit.tokens, log
        self._hashes = [block_hash(b"", salt(submit))]

    def at(self, block: int) -> bytes:
        """Hash of a block whose tokens exist."""
        while len(self._hashes) < block + 2:
            self._extend(len(self._hashes) - 1)
        return self._hashes[block + 1]

    def _extend(self, block: int) -> None:
        start, end = block * self.size, (block + 1) * self.size
        tokens = self._prompt[4 * start : 4 * end]
        if len(tokens) < 4 * self.size:
            num_prompt = len(self._prompt) // 4
            tokens += pack(self._log[max(0, start - num_prompt) : end - num_prompt])
        assert len(tokens) == 4 * self.size, "a block has no name before its last token exists"
        self._hashes.append(block_hash(self._hashes[-1], tokens))


class PrefixIndex:
    """Pages by the hash of the prefix that ends in them. One page per hash, one hash per page."""

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: object) -> bool:
        return page in self._hashes

    def match(self, chain: Chain, most: int) -> list[int]:
        """Pages of the longest known prefix of at most `most` blocks."""
        pages: list[int] = []
        for block in range(most):
            page = self._pages.get(chain.at(block))
            if page is None:
                break
            pages.append(page)
        return pages

    def add(self, page: int, hash: bytes) -> None:
        """Name a page. A prefix that another page holds already keeps that one."""
        if hash not in self._pages:
            assert page not in self._hashes, "a page's content changed under its name"
            self._pages[hash] = page
            self._hashes[page] = hash

    def forget(self, page: int) -> None:
        """Take a page's name away, if it has one."""
        hash = self._hashes.pop(page, None)
        if hash is not None:
            del self._pages[hash]

    def layout(self) -> bytes:
        """All names as bytes, for the state's digest."""
        return pack(self._hashes, "I") + b"".join(self._hashes.values())

    def check(self) -> None:
        """Assert that the two directions agree."""
        assert {page: hash for hash, page in self._pages.items()} == self._hashes
