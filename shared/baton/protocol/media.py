"""Media: files from gateway to mm-preprocess, tensors from there to the worker."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import Message, RpcReply, RpcRequest

Grid: TypeAlias = tuple[int, int, int]
"""Frames, rows and columns of patches; (1, 1, 1) if the shape of the tensor determines them,
(frames, 0, 0) for a video with one tile per frame, (chunks, frames, 0) for a sound, with the
encoder frames of all chunks. The last number of a sound is 1 instead of 0 if its last embedding is
dropped, which occurs only in encoders without images."""

Span: TypeAlias = tuple[int, int]
"""Placeholder tokens of a media item: index of the first one, and their number."""


def is_sound(grid: Grid) -> bool:
    """Whether this is the grid of a sound."""
    return grid[1] > 0 and grid[2] == 0


MAX_PIXEL_BYTES = 56 * 1024 * 1024
"""Maximum bytes of all tensors in a message: `baton.net.codec.MAX_FRAME` minus room for the rest of
the frame."""


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in row-major order, little-endian."""

    dtype: Literal["float32"]
    shape: tuple[int, ...]
    data: bytes
    """Empty if the bytes are in shared memory, or not needed."""
    token: bytes = b""
    """16 bytes: secret handle of the bytes in shared memory; see `baton.process.pixel_store`."""
    address: str = ""
    """Socket of their owner, on the same host."""
    remote: str = ""
    """ZeroMQ address at which processes of other hosts fetch them; empty if they cannot."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a tensor of this shape."""
        return 4 * math.prod(self.shape)


class MediaItem(msgspec.Struct, frozen=True, array_like=True):
    """One media part of a message."""

    modality: str
    """"image", "image_embeds", "video" or "audio"."""
    url: str
    """`data:` URL, or an http or https URL of an allowed server."""
    param: str
    """Dotted path of the part in the request, for errors."""
    sound: bool | None = None
    """Whether the sound of a video is passed to the model; None means the operator's setting."""


class Media(msgspec.Struct, frozen=True, array_like=True):
    """One media item of a sequence."""

    digest: bytes
    """32 bytes: SHA-256 of the file, its processing, and the model's configuration; in a prefix-LM
    of the prompt, too."""
    start: int
    """Index in the prompt of its first placeholder token."""
    length: int
    """Number of its placeholder tokens, including those that frame it."""
    pixels: Blob
    """Input of the encoder."""
    grid: Grid = (1, 1, 1)
    spans: tuple[Span, ...] = ()
    """As `PreparedMedia.spans`; that of a prefix-LM ends with the prompt."""
    seconds_per_grid: float = 0.0
    """Seconds between two frames of the grid of a video; 0 for an image."""
    num_states: int = 0
    """As `PreparedMedia.num_states`."""
    is_embeds: bool = False
    """As `PreparedMedia.is_embeds`."""
    num_within: int = 0
    """As `PreparedMedia.num_within`. Its position is then that of the previous item."""
    alongside: bool = False
    """Whether its embeddings are added to those of all tokens from `start` on, including generated
    ones. The sequence ends with it."""

    @property
    def num_encoded(self) -> int:
        """Approximate number of its embeddings."""
        return self.num_states or self.num_within or self.length

    def is_needed(self, computed: int) -> bool:
        """Whether tokens from position `computed` on need its embeddings."""
        return self.num_states > 0 or self.start + self.length > computed


class PreparedMedia(msgspec.Struct, frozen=True, array_like=True):
    """One preprocessed media item."""

    digest: bytes
    """As `Media.digest`."""
    tokens: bytes
    """int32: its placeholder tokens, which replace the one token `marker`."""
    pixels: Blob
    marker: int = -1
    """Token of the chat template that marks an item; -1 if it stands alone."""
    grid: Grid = (1, 1, 1)
    spans: tuple[Span, ...] = ()
    """Ranges of its tokens that attend to one another in both directions, so that a step runs a
    complete span; empty in models with causal attention only."""
    seconds_per_grid: float = 0.0
    """Seconds between two frames of the grid of a video; 0 for an image."""
    num_states: int = 0
    """Number of encoder states, if every token from its first on attends to them (cross-attention);
    0 if they replace the embeddings of its tokens."""
    is_embeds: bool = False
    """Whether `pixels` are embeddings [n, width] of a client, which bypass the encoder."""
    num_within: int = 0
    """Number of its tokens if they are among those of the previous item, like the sound of a video;
    `tokens` is empty then. 0 for an item with its own position."""
    num_alongside: int = 0
    """Number of its embeddings if they are added to the token embeddings of a sequence, from the
    first token on, which ends with them; `tokens` is empty then. 0 for an item with placeholder
    tokens."""
    whole_prompt: bool = False
    """Whether all tokens of the prompt, which begins with the item, attend to one another in both
    directions (prefix-LM); the only entry of `spans` then grows to its end."""


class Prepare(RpcRequest, tag="prepare", frozen=True):
    """Convert the media of one request to tensors. gateway -> mm-preprocess."""

    items: tuple[MediaItem, ...]
    tenant: str = ""
    """Tenant of the request; tenants take turns."""


class Prepared(RpcReply, tag="prepared", frozen=True):
    """Reply to `Prepare`, with one entry per item, and one more after a video for its sound.
    mm-preprocess -> gateway."""

    items: tuple[PreparedMedia, ...]


class TakePixels(Message, tag="take_pixels", frozen=True):
    """Request the pixels of this token. worker -> gateway, if the two share no memory."""

    token: bytes
    """`Blob.token`."""


class TakenPixels(Message, tag="taken_pixels", frozen=True):
    """Reply to `TakePixels`. gateway -> worker."""

    token: bytes
    data: bytes = b""
    """The tensor, row-major and little-endian; empty if it is gone."""
