"""Block hashes: chained over the tokens of a sequence, rooted in its weights, adapter, tenant and
salt.

The placeholders of two images are the same tokens. So the digests of all media that have a token in
a block enter the chain before it:

    hash 3 --digest of the image--> prefix of block 4 --its tokens--> hash 4
"""

from __future__ import annotations

from array import array
from hashlib import sha256

from baton.protocol import Submit
from baton.protocol.token_columns import block_hash, pack


def salt(submit: Submit, weights: bytes = b"") -> bytes:
    """Root of a sequence's hash chain: different weights, adapters, tenants and salts never share a
    page.

    An adapter is identified by its content: the same name loaded with other weights has another
    root. `weights` is the digest of the model's weights, empty for those that workers start with.
    """
    tenant = submit.tenant.encode()
    # KV of bidirectional attention cannot serve causal attention.
    whole = submit.pooling is not None and submit.pooling.reach == "whole"
    kind = b"whole:" if whole else b""
    if submit.adapter:
        kind += b"lora:%d:%b" % (len(submit.adapter), submit.adapter)
    if weights:
        kind += b"weights:%d:%b" % (len(weights), weights)
    return b"%b%d:%b%b" % (kind, len(tenant), tenant, submit.salt)


def media_key(submit: Submit, digest: bytes, weights: bytes) -> bytes:
    """Key of a media item in a worker's encoder cache. Different weights, tenants and salts never
    share one."""
    root = salt(submit, weights)
    return sha256(b"%d:%b%b" % (len(root), root, digest)).digest()


def group_key(hash: bytes, group: int) -> bytes:
    """Page hash of a block in one page group."""
    return hash + bytes((group,)) if group else hash


class BlockHashes:
    """Block hashes of a sequence, each computed once, on first use.

    Without media equal to `baton.protocol.token_columns.block_hashes(prompt + log, size,
    salt(submit, weights))`, but extended incrementally as the log grows.
    """

    def __init__(self, submit: Submit, log: array[int], size: int, weights: bytes = b"") -> None:
        self.size = size
        self._prompt, self._log = submit.tokens, log
        self._num_prompt = len(submit.tokens) // 4
        self._media = submit.media
        self._hashes = [block_hash(b"", salt(submit, weights))]

    def at(self, block: int) -> bytes:
        """Hash of a full block; the root for block -1."""
        while len(self._hashes) < block + 2:
            self.link(len(self._hashes) - 1)
        return self._hashes[block + 1]

    def prefix(self, block: int) -> bytes:
        """Hash of everything before the tokens of a block: the previous block and the media inside
        it."""
        before = self.at(block - 1)
        start, end = block * self.size, (block + 1) * self.size
        inside = [m.digest for m in self._media if m.start < end and m.start + m.length > start]
        return block_hash(before, b"".join(inside)) if inside else before

    def content(self, start: int, end: int) -> bytes:
        """The existing tokens at these positions, as an int32 column."""
        num_prompt = self._num_prompt
        if start >= num_prompt:
            return pack(self._log[start - num_prompt : end - num_prompt])
        tokens = self._prompt[4 * start : 4 * end]
        return tokens + pack(self._log[: end - num_prompt]) if end > num_prompt else tokens

    def link(self, block: int) -> tuple[bytes, bytes, bytes]:
        """(hash of a full block, its prefix, its tokens)"""
        hashes, prefix = self._hashes, self.prefix(block)
        tokens = self.content(block * self.size, (block + 1) * self.size)
        if len(hashes) == block + 1:
            assert len(tokens) == 4 * self.size, "a block has no hash before its last token exists"
            hashes.append(block_hash(prefix, tokens))
        return self.at(block), prefix, tokens
