"""Transfer of KV and of the embeddings of media between workers.

The scheduler grants read access to a sequence's pages on the source worker and orders the target
worker to pull them. The two workers then transfer the KV without the scheduler.

    scheduler -- Grant --> source          scheduler -- Pull --> target
    target -- Open --> source -- Opened --> target           once per connection: agree
    target -- Fetch --> source -- Block or Missing --> target -- Pulled --> scheduler
    scheduler -- Revoke --> source

A connection of two workers has a transfer buffer of equally sized places; a place contains one
block. The target chooses the place of each block, so the source never overwrites a block that the
target still reads.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import Message


class Grant(Message, tag="grant", frozen=True):
    """Let the holder of a token read these pages. scheduler -> source, before `Pull`.

    A later grant with the same id replaces the earlier one.
    """

    epoch: int
    """The source's incarnation, from its Hello; a worker ignores messages of another epoch."""
    id: int
    """uint64: number of the transfer"""
    token: bytes
    """16 bytes: secret that the target presents"""
    pages: bytes
    """uint32: the block tables of the sequence, one per page group, of equal length, concatenated.
    2**32 - 1 stands for a missing page"""
    length: int
    """Number of tokens whose KV is in the pages and final."""


class Revoke(Message, tag="revoke", frozen=True):
    """End grants. scheduler -> source, when a transfer has ended or is cancelled."""

    epoch: int
    ids: bytes
    """uint64: numbers of the transfers"""


class Pull(Message, tag="pull", frozen=True):
    """Copy the KV of tokens start .. end - 1 from a source worker. scheduler -> target."""

    epoch: int
    """The target's incarnation."""
    id: int
    address: str
    """The source's `WorkerInfo.kv_address`."""
    token: bytes
    """16 bytes: that of the grant"""
    start: int
    end: int
    pages: bytes
    """uint32: block tables of the target, in the form of `Grant.pages`. A page group receives only
    the tokens it has pages for"""
    source_epoch: int = 0
    """The source's incarnation: that of the grant."""
    digest: bytes = b""
    """Key of a media item: its embeddings start .. end - 1 are pulled to the encoder cache, and
    there are no pages. Empty for KV."""


class Pulled(Message, tag="pulled", frozen=True):
    """Result of a pull. target -> scheduler, when it no longer writes to the pages."""

    epoch: int
    id: int
    reason: str = ""
    """Why it failed; empty if all KV has arrived."""
    num_bytes: int = 0
    duration_us: int = 0
    """Microseconds."""
    transport: str = ""
    """Name of the transport; empty if the two workers did not agree on one."""
    digest: bytes = b""
    """`Pull.digest`."""


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A transport that a worker supports."""

    name: str
    reach: Literal["host", "network"]
    """"host": between processes of one host only; "network": also between hosts."""


class Open(Message, tag="open", frozen=True):
    """Open a connection for a granted transfer. target -> source, before the first `Fetch`."""

    id: int
    epoch: int
    """The source's incarnation: that of the grant."""
    token: bytes
    offers: tuple[Offer, ...]
    """Transports that the target supports, best first."""
    host: str
    """Identity of the target's machine and run directory."""
    layout: str
    """The target's `WorkerInfo.kv_layout`; must equal that of the source."""


class Opened(Message, tag="opened", frozen=True):
    """Answer to `Open`: the new connection, or the reason for refusing it. source -> target."""

    id: int
    transport: str = ""
    """Name of the chosen transport."""
    terms: bytes = b""
    """Parameters of the transport for the target."""
    places: int = 0
    """Number of places in the transfer buffer."""
    place_bytes: int = 0
    """Size of a place in bytes."""
    reason: str = ""
    """"unknown" if the grant has not arrived yet (retry), else why the connection is refused."""


class Close(Message, tag="close", frozen=True):
    """Close the connection. target -> source, when it is not needed any more."""


class Fetch(Message, tag="fetch", frozen=True):
    """Request the KV of one layer for tokens start .. end - 1. target -> source."""

    id: int
    token: bytes
    layer: int
    start: int
    end: int
    epoch: int = 0
    """The source's incarnation: that of the grant."""
    place: int = 0
    """Index of the place for the block in the transfer buffer; the target has read its previous
    content."""


class Block(Message, tag="block", frozen=True):
    """Answer to `Fetch`: the KV of one layer, token by token. source -> target.

    The format does not depend on the page size or page layout of either side.
    """

    id: int
    layer: int
    start: int
    dtype: str
    checksum: int
    """XXH3-64 of the block's bytes."""
    data: bytes
    """The block; empty if it was written to its place in the transfer buffer."""
    size: int = 0
    """Size of the block in bytes."""


Denial: TypeAlias = Literal["unknown", "refused", "stale"]


class Missing(Message, tag="missing", frozen=True):
    """Answer to `Fetch` without KV. source -> target.

    Reasons: "unknown", not granted yet (retry); "stale", another epoch; "refused", final.
    """

    id: int
    layer: int
    start: int
    reason: Denial
