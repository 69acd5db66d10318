"""Gateway to mm-preprocess: media parts of a request."""

from __future__ import annotations

import msgspec

from baton.protocol.base import Message


class MediaItem(msgspec.Struct, frozen=True, array_like=True):
    """One media part of a chat message."""

    modality: str
    """"image", "video" or "audio"."""
    url: str
    """`data:` URL, or `https:` where the operator allows fetching."""
    param: str
    """Dotted path of the part in the request, for errors."""


class Prepare(Message, tag="prepare", frozen=True):
    """Turn the media of one request into tensors and placeholder counts."""

    id: int
    items: tuple[MediaItem, ...]


class Prepared(Message, tag="prepared", frozen=True):
    """Answer to Prepare: per item, how many placeholder tokens it takes and its content hash."""

    id: int
    placeholders: tuple[int, ...]
    hashes: tuple[bytes, ...]
