"""Keys and values on their way from one worker to another.

The scheduler grants a sequence's pages on the worker that has them and tells the other one to pull;
the two workers do the rest. Nothing here can be set by a client.

    scheduler -- Grant --> source          scheduler -- Pull --> target
    target -- Fetch --> source -- Block or Missing --> target -- Pulled --> scheduler
    scheduler -- Revoke --> source
"""

from __future__ import annotations

from typing import Literal

from baton.protocol.base import Message


class Grant(Message, tag="grant", frozen=True):
    """Whoever has the token may read these pages. A later grant of the same id replaces it."""

    epoch: int
    """The source's incarnation as granted at its Hello; others are refused."""
    id: int
    token: bytes
    """16 bytes that the target has to show."""
    pages: bytes
    """uint32 page numbers of the sequence, from its first token on"""
    length: int
    """Tokens whose keys are in them, final."""


class Revoke(Message, tag="revoke", frozen=True):
    """These grants are over. scheduler -> source"""

    epoch: int
    ids: bytes
    """uint64"""


class Pull(Message, tag="pull", frozen=True):
    """Copy the keys of tokens start .. end - 1 from a source into own pages. scheduler -> target"""

    epoch: int
    """The target's incarnation."""
    id: int
    address: str
    """Where the source serves its pages."""
    token: bytes
    start: int
    end: int
    pages: bytes
    """uint32 page numbers of the target, from the sequence's first token on"""


class Pulled(Message, tag="pulled", frozen=True):
    """How a pull ended. Until then the target may still write to its pages. target -> scheduler"""

    epoch: int
    id: int
    reason: str = ""
    """Why it failed; empty when every key is there."""
    num_bytes: int = 0
    duration_us: int = 0


class Fetch(Message, tag="fetch", frozen=True):
    """Send the keys and values of one layer for tokens start .. end - 1. target -> source"""

    id: int
    token: bytes
    layer: int
    start: int
    end: int


class Block(Message, tag="block", frozen=True):
    """Answer to Fetch: what one layer holds of some tokens, token after token.

    Independent of the page size on either side.
    """

    id: int
    layer: int
    start: int
    dtype: str
    checksum: int
    """CRC-32 of `data`."""
    data: bytes


class Missing(Message, tag="missing", frozen=True):
    """Answer to Fetch: not yet granted (ask again), or refused for good."""

    id: int
    layer: int
    start: int
    reason: Literal["unknown", "refused"]
