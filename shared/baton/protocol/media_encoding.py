"""Encoding of media on workers of the role `encode`, separate from prefill and decode.

scheduler -- EncodeMedia --> encode worker -- MediaEncoded --> scheduler
scheduler -- Pull (digest) --> prefill worker -- Open, Fetch --> encode worker
scheduler <-- Pulled (digest) -- prefill worker
scheduler -- Revoke --> encode worker
"""

from __future__ import annotations

from baton.protocol.base import Message
from baton.protocol.media import Media


class EncodeMedia(Message, tag="encode_media", frozen=True):
    """Encode a media item, and let the holder of the token read its embeddings. scheduler ->
    encode worker.
    """

    epoch: int
    """The worker's incarnation, from its Hello; a worker ignores messages of another epoch."""
    id: int
    """uint64: number of the encoding, for pulls and revocation."""
    token: bytes
    """16 bytes: secret that the target of a pull presents."""
    item: Media
    """`digest` is its key in encoder caches; its position in a prompt is ignored."""


class MediaEncoded(Message, tag="media_encoded", frozen=True):
    """Result of `EncodeMedia`: the embeddings can be pulled until `Revoke`. encode worker ->
    scheduler.
    """

    epoch: int
    id: int
    refused: str = ""
    """Why no worker can encode the item; empty if nothing is wrong."""
    num_tokens: int = 0
    """Number of embeddings."""
    num_bytes: int = 0
    """Bytes of all embeddings."""
    duration_us: int = 0
    """Microseconds that the encoder ran; 0 if the embeddings were in its cache."""
    unavailable: bool = False
    """The pixels are gone from shared memory; another sequence may still have them."""
