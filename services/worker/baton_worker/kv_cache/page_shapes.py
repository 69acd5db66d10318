"""Shape and bytes of what each layer keeps per page of tokens."""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

from baton_worker.kernels.kv_codes import KVCodes, row_width
from baton_worker.spec import (
    ContextShard,
    CrossAttention,
    Decoder,
    Encoder,
    KVReuse,
    LatentAttention,
    Mixer,
    Recurrent,
)

PageShape: TypeAlias = tuple[int, int, int, int]
StateShape: TypeAlias = tuple[int, ...]


def page_shapes(
    spec: Decoder, page_size: int, codes: KVCodes | None = None
) -> tuple[PageShape, ...]:
    """Per layer, the shape of one page: [page_size, 2 (key, value), num_kv_heads, head_dim].

    A step writes key and value with one scatter and reads both with one gather. A page is one block
    of memory in the order given by `kernels.page_layout`. Exceptions: if values have another width
    than keys, each value follows its key: [page_size, 1, num_kv_heads, key + value]. Latent
    attention keeps one vector per token: [page_size, 1, 1, kept_width]. `Recurrent` mixers declare
    their own shape. A layer without a mixer, with cross-attention or the KV of another layer has
    empty pages, and an encoder has none. With context parallelism, a page of one rank holds fewer
    tokens (`context`). With `codes`, each attention width is its `kernels.kv_codes.row_width`.
    """
    if isinstance(spec, Encoder):
        return ()
    return tuple(_page_shape(mixer, page_size, codes) for mixer, _ in spec.layers)


def context(mixer: Mixer | None) -> ContextShard:
    """The tokens of a page that a layer keeps on this rank."""
    return getattr(mixer, "context", None) or ContextShard(0, 1)


def _page_shape(mixer: Mixer | None, page_size: int, codes: KVCodes | None) -> PageShape:
    if mixer is None or isinstance(mixer, CrossAttention | KVReuse):
        return (page_size, 2, 0, 0)
    rows = page_size // context(mixer).size
    if isinstance(mixer, LatentAttention):
        return (rows, 1, 1, mixer.kept_width)
    if isinstance(mixer, Recurrent):
        return (rows, *mixer.row)
    if mixer.kept_dim is not None:
        width = row_width(mixer.head_dim, codes) + row_width(mixer.kept_dim, codes)
        return (rows, 1, mixer.num_kv_heads, width)
    return (rows, 2, mixer.num_kv_heads, row_width(mixer.head_dim, codes))


def state_shapes(spec: Decoder) -> dict[int, StateShape]:
    """By layer with recurrent states, the shape of a page's state: float32, the state before the
    first token of the page."""
    return {
        layer: mixer.state
        for layer, (mixer, _) in enumerate(spec.layers)
        if isinstance(mixer, Recurrent) and mixer.state is not None
    }


def state_bytes(shape: StateShape | None) -> int:
    """Bytes of the state of one page."""
    return 0 if shape is None else math.prod(shape) * torch.float32.itemsize


def layer_bytes(
    spec: Decoder, page_size: int, dtype: torch.dtype, codes: KVCodes | None = None
) -> list[int]:
    """Per layer, the bytes of one page of `page_size` tokens, its state included."""
    size = dtype.itemsize if codes is None else 1
    tokens = (math.prod(shape) * size for shape in page_shapes(spec, page_size, codes))
    states = state_shapes(spec)
    return [kv + state_bytes(states.get(layer)) for layer, kv in enumerate(tokens)]


def bytes_per_page(
    spec: Decoder, page_size: int, dtype: torch.dtype, codes: KVCodes | None = None
) -> int:
    """Bytes of one page of `page_size` tokens over all layers, as if they were one group."""
    return sum(layer_bytes(spec, page_size, dtype, codes))
