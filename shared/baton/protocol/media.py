"""Messages between gateway and mm-preprocess: media items to tensors."""

from __future__ import annotations

from typing import Literal

import msgspec

from baton.protocol.base import RpcReply, RpcRequest


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in row-major order, little-endian."""

    dtype: Literal["float32"]
    shape: tuple[int, ...]
    data: bytes


class MediaItem(msgspec.Struct, frozen=True, array_like=True):
    """One media part of a message."""

    modality: str
    """"image", "video" or "audio"."""
    url: str
    """`data:` URL; other schemes are refused."""
    param: str
    """Dotted path of the part in the request, for errors."""


class Prepare(RpcRequest, tag="prepare", frozen=True):
    """Convert the media of one request to tensors. gateway -> mm-preprocess."""

    items: tuple[MediaItem, ...]


class Prepared(RpcReply, tag="prepared", frozen=True):
    """Answer to `Prepare`, with one entry per item. mm-preprocess -> gateway."""

    placeholders: tuple[int, ...]
    """Number of placeholder tokens per item."""
    hashes: tuple[bytes, ...]
    """16 bytes per item: hash of its tensor's dtype, shape and content."""
    tensors: tuple[Blob, ...] = ()
    """Input tensor of the model per item."""
