"""Media from the wire, checked against the model's capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.protocol import Blob, Media
from baton.protocol.media import Grid
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.multimodal.pixels import Pixels, PixelsError, open_pixels
from baton_worker.models.vision.media_tower import MediaTower


@dataclass(frozen=True, slots=True, eq=False)
class SequenceMedia:
    """One media item in the prompt of a sequence."""

    digest: bytes
    """Its name in the encoder cache."""
    positions: Column
    """int64 [n]: the positions in the sequence that its n embeddings take, in order."""
    pixels: Pixels
    grid: Grid
    spans: Column = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """int64 [any, 2]: from which position to which, exclusive, tokens see one another."""
    seconds_per_grid: float = 0.0
    """Seconds between two frames of the grid of a video; 0 for an image."""
    is_embeds: bool = False
    """Whether `pixels` are embeddings [n, width] that a client made."""
    within: bool = False
    """Whether its tokens are among those of the item before it, a video whose sound it is."""


class MediaRows(NamedTuple):
    """Embeddings of one media item that a step needs."""

    item: SequenceMedia
    first: int
    """Row of the first of them in the output of the encoder."""
    places: Column
    """int64: where on the flat token axis they go."""


class SeenMedia(NamedTuple):
    """Media items that tokens of a step attend to, without being their placeholders."""

    items: tuple[SequenceMedia, ...]
    places: Column
    """int64, ascending: where on the flat token axis these tokens are."""

    @property
    def key(self) -> tuple[bytes, ...]:
        """Digests of the items, in order."""
        return tuple(item.digest for item in self.items)


def pixels_of(media: Sequence[Media], shape: tuple[int, ...] | None) -> Pixels | str:
    """The single image of a sequence in the model's shape, or why it cannot be used. `shape` is
    None for a text model.
    """
    if shape is None:
        return "this model takes no media"
    if len(media) != 1:
        return f"one image was expected, not {len(media)}"
    blob = media[0].pixels
    if blob.shape != shape:
        return f"an image of shape {list(shape)} was expected, not {list(blob.shape)}"
    return _opened(blob)


def prompt_media(
    media: Sequence[Media],
    tokens: npt.NDArray[np.int32],
    tower: MediaTower | None,
    computed: int = 0,
) -> list[SequenceMedia] | str:
    """The media of a prompt, or why they cannot be used.

    Args:
        tokens: int32 [n], the sequence.
        tower: the vision encoder of the model; None for a text model.
        computed: number of tokens with computed KV; media before them need no pixels.
    """
    if tower is None:
        return "this model takes no media"
    items = []
    for item in media:
        if item.alongside != tower.alongside:
            return "its way along with the tokens is not as the media preprocessor says"
        blob, positions = item.pixels, _placeholders(item, tokens, tower)
        if why := refusal(item, tower) or _mismatch(item, len(positions), tower):
            return why
        bare = not (blob.data or blob.token or item.is_needed(computed))
        pixels = np.zeros(0, np.float32) if bare else _opened(blob)
        if isinstance(pixels, str):
            return pixels
        spans = np.array(item.spans, np.int64).reshape(-1, 2).cumsum(1) + item.start
        seconds = item.seconds_per_grid
        how = (spans, seconds, item.is_embeds, item.num_within > 0)
        items.append(SequenceMedia(item.digest, positions, pixels, item.grid, *how))
    return items


def _placeholders(item: Media, tokens: npt.NDArray[np.int32], tower: MediaTower) -> Column:
    """int64 [n]: where in the sequence the embeddings of an item go."""
    if item.alongside:
        return item.start + np.arange(item.length)
    within = np.isin(tokens[item.start : item.start + item.length], tower.tokens_of(item.grid))
    return item.start + np.flatnonzero(within)


def _mismatch(item: Media, num_placeholders: int, tower: MediaTower) -> str:
    """Why an item is not placed in its sequence as the model needs it, or nothing: the media
    preprocessor has read another config."""
    shape = item.pixels.shape
    count = shape[0] if item.is_embeds else tower.num_tokens(shape, item.grid)
    if num_placeholders != (expected := tower.num_placeholders(count)):
        return f"a media item has {num_placeholders} placeholders in the place of {expected}"
    if bool(item.spans) != tower.bidirectional:
        return "its attention within images is not as the media preprocessor says"
    if item.num_states != tower.cross * count:
        return "its attention to images is not as the media preprocessor says"
    return ""


def refusal(item: Media, tower: MediaTower) -> str:
    """Why the tensor of an item is nothing for this model, or nothing."""
    shape = item.pixels.shape
    if not item.is_embeds:
        return tower.refusal(shape, item.grid)
    if not tower.dtype.is_floating_point:
        return "its images are tokens: it takes no embeddings"
    fits = len(shape) == 2 and shape[0] > 0 and shape[1] == tower.width
    return "" if fits else f"embeddings have the shape {list(shape)}, not [n, {tower.width}]"


def encoder_input(item: Media, tower: MediaTower) -> Pixels:
    """The encoder's input of an item.

    Raises:
        PixelsError: it cannot be encoded.
    """
    assert not item.is_embeds, "a scheduler sends these to no encoder"
    pixels = open_pixels(item.pixels)
    if why := refusal(item, tower):
        raise PixelsError(why)
    return pixels


def _opened(blob: Blob) -> Pixels | str:
    try:
        return open_pixels(blob)
    except PixelsError as error:
        return error.message
