"""Which layer keeps which state for a page of tokens, and how many bytes that takes."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

from baton_worker.kernels.pages import Codes, row_width
from baton_worker.models.spec import Decoder, Encoder, LatentAttention, Mixer

PageShape: TypeAlias = tuple[int, int, int, int]


def page_shapes(spec: Decoder, page_size: int, codes: Codes | None = None) -> tuple[PageShape, ...]:
    """Per layer, the shape of one page: [page_size, 2 (key, value), num_kv_heads, head_dim].

    Key and value of one token lie side by side, so a step writes both with one scatter and reads
    both with one gather, and a page is one contiguous block to transfer. Latent attention keeps one
    vector per token: [page_size, 1, 1, width]. A layer without a mixer keeps nothing: its pages are
    empty. An encoder has no pages at all. With `codes` the last axis is `kernels.pages.row_width`.
    """
    if isinstance(spec, Encoder):
        return ()
    return tuple(_page_shape(mixer, page_size, codes) for mixer, _ in spec.layers)


def _page_shape(mixer: Mixer | None, page_size: int, codes: Codes | None) -> PageShape:
    if mixer is None:
        return (page_size, 2, 0, 0)
    if isinstance(mixer, LatentAttention):
        return (page_size, 1, 1, mixer.width)
    return (page_size, 2, mixer.num_kv_heads, row_width(mixer.head_dim, codes))


def bytes_per_page(
    spec: Decoder, page_size: int, dtype: torch.dtype, codes: Codes | None = None
) -> int:
    """Bytes that one page of `page_size` tokens takes over all layers."""
    size = dtype.itemsize if codes is None else 1
    return sum(math.prod(shape) for shape in page_shapes(spec, page_size, codes)) * size


def window(spec: Decoder) -> int:
    """How many of its last tokens, itself included, a token sees at most in any layer with pages;
    0 when some layer sees all of them, or when there are no pages."""
    mixers = () if isinstance(spec, Encoder) else tuple(m for m, _ in spec.layers if m is not None)
    seen = {0 if isinstance(mixer, LatentAttention) else mixer.window or 0 for mixer in mixers}
    return 0 if 0 in seen else max(seen, default=0)
