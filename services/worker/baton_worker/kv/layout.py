"""Which layer keeps which state for a page of tokens, and how many bytes that takes."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

from baton_worker.models.spec import Decoder, Encoder, LatentAttention, Mixer

PageShape: TypeAlias = tuple[int, int, int, int]


def page_shapes(spec: Decoder, page_size: int) -> tuple[PageShape, ...]:
    """Per layer, the shape of one page: [page_size, 2 (key, value), num_kv_heads, head_dim].

    Key and value of one token lie side by side, so a step writes both with one scatter and reads
    both with one gather, and a page is one contiguous block to transfer. Latent attention keeps one
    vector per token: [page_size, 1, 1, width]. A layer without a mixer keeps nothing: its pages are
    empty. An encoder has no pages at all.
    """
    if isinstance(spec, Encoder):
        return ()
    return tuple(_page_shape(mixer, page_size) for mixer, _ in spec.layers)


def _page_shape(mixer: Mixer | None, page_size: int) -> PageShape:
    if mixer is None:
        return (page_size, 2, 0, 0)
    if isinstance(mixer, LatentAttention):
        return (page_size, 1, 1, mixer.width)
    return (page_size, 2, mixer.num_kv_heads, mixer.head_dim)


def bytes_per_page(spec: Decoder, page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page of `page_size` tokens takes over all layers."""
    return sum(math.prod(shape) for shape in page_shapes(spec, page_size)) * dtype.itemsize
