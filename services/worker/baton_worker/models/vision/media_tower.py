"""The interface of encoders of media in prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from baton.protocol.media import Grid


class MediaTower(nn.Module):
    """An encoder of images, videos or sounds: to embeddings in the place of placeholder tokens, or
    to tokens."""

    image_token: int
    media_tokens: tuple[int, ...]
    """Tokens in whose place an embedding goes."""
    tokens_per_second = 0.0
    """Positions on the time axis per second of a video; 0 for one per frame of its grid."""
    rope_index = "mrope"
    """The rule for positions of media on several axes, a key of
    `engine.multimodal.rope_index.RULES`."""
    merge = 1
    """Patches on a side of what becomes one embedding."""
    added = False
    """Whether embeddings are added to those of their placeholders."""
    alongside = False
    """Whether embeddings are added to those of all tokens from the first on, the generated ones
    too; they take the place of none."""
    cross = False
    """Whether they take the place of no token: those behind an item see all of it, by the
    decoder's cross-attention."""

    def tokens_of(self, grid: Grid) -> tuple[int, ...]:
        """The tokens of `media_tokens` that are placeholders of an item with this grid."""
        return self.media_tokens

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """Why pixels of this shape cannot be encoded, or nothing."""
        raise NotImplementedError

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """Number of embeddings of an item."""
        raise NotImplementedError

    def num_placeholders(self, num_tokens: int) -> int:
        """Number of `media_tokens` that stand for an item of so many embeddings."""
        return num_tokens

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """Shapes and grids of media that make at least so many embeddings, none of them larger
        than it has to be."""
        raise NotImplementedError

    @property
    def bidirectional(self) -> bool:
        """Whether the tokens of an image see one another in both directions."""
        return False

    @property
    def width(self) -> int:
        """Numbers of one embedding."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """Of embeddings; integers are tokens."""
        raise NotImplementedError

    @property
    def progress(self) -> int:
        """Number of layers run since construction, for watchdogs."""
        raise NotImplementedError

    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 media to [num_tokens, width] each."""
        raise NotImplementedError


def is_finite(embeddings: Tensor) -> bool:
    """Whether all embeddings are numbers; a token that stands for one that is not is negative."""
    if embeddings.is_floating_point():
        return bool(torch.isfinite(embeddings).all())
    return bool((embeddings >= 0).all())
