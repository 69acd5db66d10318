"""Media: from gateway to mm-preprocess as files, from there to the worker as tensors."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import Message, RpcReply, RpcRequest

Grid: TypeAlias = tuple[int, int, int]
"""Frames, rows and columns of patches; (1, 1, 1) where the shape of the tensor says all, and
(frames, 0, 0) for a video whose frames are one tile each. (chunks, frames, 0) for a sound, with the
frames of all chunks that its encoder sees; 1 in place of 0 if its last embedding is left out, which
only encoders without images do."""

Span: TypeAlias = tuple[int, int]
"""Tokens that stand for a media item: index of the first among them, and their number."""


def is_sound(grid: Grid) -> bool:
    """Whether this is the grid of a sound."""
    return grid[1] > 0 and grid[2] == 0


MAX_PIXEL_BYTES = 56 * 1024 * 1024
"""Most bytes of all tensors in a message: the rest of its frame has what is left of
`baton.net.codec.MAX_FRAME`."""


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in row-major order, little-endian."""

    dtype: Literal["float32"]
    shape: tuple[int, ...]
    data: bytes
    """Empty if the bytes are in shared memory, or are not needed."""
    token: bytes = b""
    """16 bytes: secret by which they are taken from shared memory; see
    `baton.process.pixel_store`."""
    address: str = ""
    """Socket of their owner, on the same host."""
    remote: str = ""
    """ZeroMQ address at which processes of other hosts take them; empty if they cannot."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a tensor of this shape."""
        return 4 * math.prod(self.shape)


class MediaItem(msgspec.Struct, frozen=True, array_like=True):
    """One media part of a message."""

    modality: str
    """"image", "image_embeds", "video" or "audio"."""
    url: str
    """`data:` URL, or an http or https URL of a server that is allowed."""
    param: str
    """Dotted path of the part in the request, for errors."""
    sound: bool | None = None
    """Whether the sound of a video goes to the model too; None: as the operator has set it."""


class Media(msgspec.Struct, frozen=True, array_like=True):
    """One media item of a sequence."""

    digest: bytes
    """32 bytes: SHA-256 of the file, of what is done to it, and of the model's configuration."""
    start: int
    """Index in the prompt of the first token that stands for it."""
    length: int
    """Number of tokens that stand for it, those that only frame it included."""
    pixels: Blob
    """What its encoder takes."""
    grid: Grid = (1, 1, 1)
    spans: tuple[Span, ...] = ()
    """As `PreparedMedia.spans`."""
    seconds_per_grid: float = 0.0
    """Seconds between two frames of the grid of a video; 0 for an image."""
    num_states: int = 0
    """As `PreparedMedia.num_states`."""
    is_embeds: bool = False
    """As `PreparedMedia.is_embeds`."""
    num_within: int = 0
    """As `PreparedMedia.num_within`. Its place is then that of the item before it."""
    alongside: bool = False
    """Whether its embeddings are added to those of all tokens from `start` on, of which some are
    generated later. The sequence ends with it."""

    @property
    def num_encoded(self) -> int:
        """Number of vectors that its encoder makes, about."""
        return self.num_states or self.num_within or self.length

    def is_needed(self, computed: int) -> bool:
        """Whether tokens from position `computed` on need what its encoder makes."""
        return self.num_states > 0 or self.start + self.length > computed


class PreparedMedia(msgspec.Struct, frozen=True, array_like=True):
    """One media item as the model takes it."""

    digest: bytes
    """As `Media.digest`."""
    tokens: bytes
    """int32: what stands for it in a prompt, in the place of the one token `marker`."""
    pixels: Blob
    marker: int = -1
    """Token by which the chat template says that there is an item; -1 if it stands alone."""
    grid: Grid = (1, 1, 1)
    spans: tuple[Span, ...] = ()
    """Which of its tokens see one another in both directions, so that a step runs all of a span;
    empty in models with causal attention alone."""
    seconds_per_grid: float = 0.0
    """Seconds between two frames of the grid of a video; 0 for an image."""
    num_states: int = 0
    """Number of vectors that its encoder makes, if every token from its first on attends to them
    (cross-attention); 0 where they take the place of its tokens."""
    is_embeds: bool = False
    """Whether `pixels` are embeddings [n, width] that a client made, which no encoder sees."""
    num_within: int = 0
    """Number of its tokens if they stand among those of the item before it, as the sound of a video
    does; `tokens` is empty then. 0 for an item with a place of its own."""
    num_alongside: int = 0
    """Number of its embeddings if they are added to those of the tokens of a sequence, from the
    first on, which goes on until they end; `tokens` is empty then. 0 for an item that tokens stand
    for."""


class Prepare(RpcRequest, tag="prepare", frozen=True):
    """Convert the media of one request to tensors. gateway -> mm-preprocess."""

    items: tuple[MediaItem, ...]
    tenant: str = ""
    """Whose they are; tenants take turns."""


class Prepared(RpcReply, tag="prepared", frozen=True):
    """Answer to `Prepare`, with one entry per item, and one behind that of a video for its sound.
    mm-preprocess -> gateway."""

    items: tuple[PreparedMedia, ...]


class TakePixels(Message, tag="take_pixels", frozen=True):
    """Send the pixels of this token. worker -> gateway, where the two share no memory."""

    token: bytes
    """`Blob.token`."""


class TakenPixels(Message, tag="taken_pixels", frozen=True):
    """Answer to `TakePixels`. gateway -> worker."""

    token: bytes
    data: bytes = b""
    """The tensor, row-major and little-endian; empty if it is gone."""
