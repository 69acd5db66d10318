"""The content contract: what a worker serves to others and pulls from them, block by block.

Connections, grants and transports know nothing of it. `PageContent` is KV in pages,
`EmbeddingContent` the outputs of vision encoders.
"""

from __future__ import annotations

from typing import Protocol

from baton.protocol import Grant, Pull
from baton_worker.kv_transfer.transport import BlockBuffer
from baton_worker.kv_transfer.wire_format import Extent


class Reader(Protocol):
    """Content that a grant lets a peer read."""

    def covers(self, extent: Extent) -> bool:
        """Whether the extent is granted and fits into one block."""

    def read(self, extent: Extent, into: BlockBuffer) -> None:
        """Copy a granted extent to the block `into`, uint8 [`Content.block_bytes`]."""


class Writer(Protocol):
    """Destination of a pull."""

    def extents(self) -> list[Extent]:
        """Content to pull, in extents of one block each."""

    def write(self, extent: Extent, block: BlockBuffer) -> None:
        """Store a block."""


class Content(Protocol):
    """One per worker and kind of content."""

    layout: str
    """Signature of the bytes of a block. Only workers of equal signatures transfer."""
    place_bytes: int
    """Bytes of a buffer slot that fits any block."""

    def dtype_name(self, layer: int) -> str:
        """Storage dtype of a layer; both sides must agree."""

    def block_bytes(self, extent: Extent) -> int:
        """Bytes of the block for an extent."""

    def reader(self, grant: Grant) -> Reader:
        """The content of a grant of the scheduler. Raises `ValueError` if it does not fit."""

    def writer(self, pull: Pull) -> Writer:
        """The destination of a pull. Raises `ValueError` if it does not fit."""
