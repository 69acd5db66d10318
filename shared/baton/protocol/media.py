"""Gateway to mm-preprocess: media parts of a request, and what they become."""

from __future__ import annotations

from typing import Literal

import msgspec

from baton.protocol.base import Message


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A tensor. Rows lie one after the other, numbers are little-endian."""

    dtype: Literal["float32"]
    shape: tuple[int, ...]
    data: bytes


class MediaItem(msgspec.Struct, frozen=True, array_like=True):
    """One media part of a message."""

    modality: str
    """"image", "video" or "audio"."""
    url: str
    """`data:` URL; what lies elsewhere is refused."""
    param: str
    """Dotted path of the part in the request, for errors."""


class Prepare(Message, tag="prepare", frozen=True):
    """Turn the media of one request into tensors and placeholder counts."""

    id: int
    items: tuple[MediaItem, ...]


class Prepared(Message, tag="prepared", frozen=True):
    """Answer to Prepare, item by item."""

    id: int
    placeholders: tuple[int, ...]
    """How many tokens stand for it."""
    hashes: tuple[bytes, ...]
    """16 bytes of its tensor's type, shape and content."""
    tensors: tuple[Blob, ...] = ()
    """What the model is given of it."""
