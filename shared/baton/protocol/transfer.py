"""Keys and values on their way from one worker to another.

The scheduler grants a sequence's pages on the worker that has them and tells the other one to pull;
the two workers do the rest. Nothing here can be set by a client.

    scheduler -- Grant --> source          scheduler -- Pull --> target
    target -- Open --> source -- Opened --> target           once per lane: which transport
    target -- Fetch --> source -- Block or Missing --> target -- Pulled --> scheduler
    scheduler -- Revoke --> source

A lane is a pair of workers and the memory between them: some places of equal size, each of which
holds one block at a time. The target says which place the next block goes to, so nothing is ever
overwritten that it still reads.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from baton.protocol.base import Message


class Grant(Message, tag="grant", frozen=True):
    """Whoever has the token may read these pages. A later grant of the same id replaces it."""

    epoch: int
    """The source's incarnation as granted at its Hello; others are refused."""
    id: int
    token: bytes
    """16 bytes that the target has to show."""
    pages: bytes
    """uint32 page numbers of the sequence, from its first token on: the tables of all groups of
    layers one after the other, equally long; 2**32 - 1 in the place of a page that is not held"""
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
    """uint32 page numbers of the target, in the form of `Grant.pages`: of each group the tokens are
    wanted for which there are pages"""
    source_epoch: int = 0
    """The source's incarnation: that of the grant."""


class Pulled(Message, tag="pulled", frozen=True):
    """How a pull ended. Until then the target may still write to its pages. target -> scheduler"""

    epoch: int
    id: int
    reason: str = ""
    """Why it failed; empty when every key is there."""
    num_bytes: int = 0
    duration_us: int = 0
    transport: str = ""
    """What carried it; empty when the two workers never came to agree on one."""


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A transport that a worker can use."""

    name: str
    reach: Literal["host", "network"]
    """Whether it carries to other hosts, too."""


class Open(Message, tag="open", frozen=True):
    """Agree with me on how to carry what is granted under this id. target -> source"""

    id: int
    epoch: int
    """The source's incarnation: that of the grant."""
    token: bytes
    offers: tuple[Offer, ...]
    """What the target can use, best first."""
    host: str
    """What machine it is on, and which run directory it sees."""
    layout: str
    """What its pages hold of a token: equal to that of the source."""


class Opened(Message, tag="opened", frozen=True):
    """Answer to Open: the lane that is there now, or why there is none. source -> target"""

    id: int
    transport: str = ""
    terms: bytes = b""
    """What the target's half of that transport needs to know."""
    places: int = 0
    place_bytes: int = 0
    reason: str = ""
    """"unknown" (not granted yet: ask again), or why there will never be a lane."""


class Close(Message, tag="close", frozen=True):
    """The lane is not needed any more. target -> source"""


class Fetch(Message, tag="fetch", frozen=True):
    """Send the keys and values of one layer for tokens start .. end - 1. target -> source"""

    id: int
    token: bytes
    layer: int
    start: int
    end: int
    epoch: int = 0
    """The source's incarnation: that of the grant."""
    place: int = 0
    """Where in the lane the block goes; the target has read what was there before."""


class Block(Message, tag="block", frozen=True):
    """Answer to Fetch: what one layer holds of some tokens, token after token.

    Independent of the size and the layout of pages on either side.
    """

    id: int
    layer: int
    start: int
    dtype: str
    checksum: int
    """XXH3-64 of the block's bytes."""
    data: bytes
    """The block, or nothing when it is in its place of the lane."""
    size: int = 0
    """Bytes of the block."""


class Missing(Message, tag="missing", frozen=True):
    """Answer to Fetch: not yet granted (ask again), of another epoch, or refused for good."""

    id: int
    layer: int
    start: int
    reason: Literal["unknown", "refused", "stale"]
