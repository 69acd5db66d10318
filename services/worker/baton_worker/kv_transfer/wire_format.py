"""The wire format of KV: token by token, independent of page size and layout.

A block is [tokens, 2 (key, value), num_kv_heads, width], converted from and to any page size and
layout. If pages hold recurrent states as well, these follow the layers in the numbering of
`Extent.layer`, with one row per page that the tokens touch; both sides then need equal page sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from baton.protocol.token_columns import unpack
from baton_worker.kv_cache.cache import KVCache, Track
from baton_worker.kv_transfer.transport import Bytes

BLOCK_BYTES = 1024 * 1024
"""Largest block, unless one token takes more. Two of them fit into a core's cache."""
_LINE = 64

_NONE = 0xFFFFFFFF
"""Wire value for a page that is not held."""

Ints = NDArray[np.int64]
Tables = Ints
"""Block tables of a sequence from its first token, [groups, blocks]; -1 for a missing page."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Tokens start .. end - 1 of one layer, or the states of their pages."""

    layer: int
    """Index into `KVCache.tracks`."""
    start: int
    end: int


def token_bytes(cache: KVCache, layer: int) -> int:
    """Bytes of one token in one layer, or of one state."""
    pages = cache.tracks[layer].pages
    return pages[0, 0].numel() * pages.element_size()


def num_rows(cache: KVCache, extent: Extent) -> int:
    """Rows of the block for an extent."""
    span = cache.tracks[extent.layer].span
    return -(-extent.end // span) - extent.start // span


def dtype_name(cache: KVCache, layer: int) -> str:
    """Storage dtype of a layer; both sides must agree."""
    if cache.codes is not None:
        return cache.codes.name
    return str(cache.tracks[layer].pages.dtype).removeprefix("torch.")


def tables(cache: KVCache, pages: bytes) -> Tables:
    """Decode the block tables of a `Grant` or a `Pull`.

    Raises:
        ValueError: they do not match this cache.
    """
    groups = len(cache.groups.windows)
    column = unpack(pages, "I")
    if not column or len(column) % groups:
        raise ValueError(f"{len(column)} pages are not those of {groups} groups")
    made = np.array(column, np.int64).reshape(groups, -1)
    made[made == _NONE] = -1
    if made.max() >= cache.num_pages:
        raise ValueError(f"page {made.max()} is not there")
    return made


def held(cache: KVCache, tables: Tables, extent: Extent) -> bool:
    """Whether every token of an extent has a page."""
    size = cache.page_size
    row = tables[cache.tracks[extent.layer].group]
    blocks = row[extent.start // size : -(-extent.end // size)]
    return extent.end <= len(row) * size and bool((blocks >= 0).all())


def extents(cache: KVCache, start: int, end: int, tables: Tables | None = None) -> list[Extent]:
    """Extents of all layers for tokens start .. end - 1, cut so that each fits into one block. With
    `tables`, only for tokens that have pages, which are the last ones."""
    cut = []
    for number, track in enumerate(cache.tracks):
        size = token_bytes(cache, number)
        if not size:
            continue
        most = max(1, BLOCK_BYTES // size) * track.span
        begin = max(start, _first(cache, tables, track)) if tables is not None else start
        begin -= begin % track.span
        cut += [Extent(number, at, min(at + most, end)) for at in range(begin, end, most)]
    return cut


def _first(cache: KVCache, tables: Tables, track: Track) -> int:
    """First token of a layer that has a page."""
    row = tables[track.group]
    there = np.flatnonzero(row >= 0)
    return int(there[0] if len(there) else len(row)) * cache.page_size


def layout(cache: KVCache) -> str:
    """Signature of the bytes per token and state of each layer. Workers transfer KV only if their
    signatures are equal."""
    return ",".join(
        f"{dtype_name(cache, number)}x{token_bytes(cache, number)}"
        + (f"/{track.span}" if track.span > 1 else "")
        for number, track in enumerate(cache.tracks)
    )


def block_bytes(cache: KVCache, extent: Extent) -> int:
    """Bytes of the block for an extent."""
    return num_rows(cache, extent) * token_bytes(cache, extent.layer)


def place_bytes(cache: KVCache) -> int:
    """Bytes of a buffer slot that fits any block of this cache, a multiple of a cache line."""
    widest = max((token_bytes(cache, number) for number in range(len(cache.tracks))), default=0)
    return aligned(max(BLOCK_BYTES, widest))


def aligned(size: int) -> int:
    """The next multiple of a cache line, in bytes."""
    return -(-size // _LINE) * _LINE


def read(cache: KVCache, tables: Tables, extent: Extent, into: Bytes) -> None:
    """Copy the tokens of an extent from pages on a host into the block `into`, uint8
    [`block_bytes`]."""
    layer = cache.tracks[extent.layer].pages
    where, offset = places(cache, tables, extent)
    numbers = layer.view(torch.uint8).numpy()
    if layer.is_contiguous():
        slots = where * layer.shape[1] + offset
        rows = numbers.reshape(layer.shape[0] * layer.shape[1], -1)
        np.take(rows, slots, axis=0, out=into.reshape(len(slots), -1), mode="clip")
    else:
        into.reshape(-1, *numbers.shape[2:])[:] = numbers[where, offset]


def write(cache: KVCache, tables: Tables, extent: Extent, block: Bytes) -> None:
    """Copy a block produced by `read` into the pages of a sequence, on a host.

    Raises:
        ValueError: the block has the wrong size for these tokens.
    """
    layer = cache.tracks[extent.layer].pages
    if len(block) != block_bytes(cache, extent):
        raise ValueError(f"{len(block)} bytes are not {extent.end - extent.start} tokens")
    where, offset = places(cache, tables, extent)
    numbers = layer.view(torch.uint8).numpy()
    if layer.is_contiguous():
        slots = where * layer.shape[1] + offset
        rows = numbers.reshape(layer.shape[0] * layer.shape[1], -1)
        rows[slots] = block.reshape(len(slots), -1)
    else:
        numbers[where, offset] = block.reshape(-1, *numbers.shape[2:])


def places(cache: KVCache, tables: Tables, extent: Extent) -> tuple[Ints, Ints]:
    """Page and offset within it of each row, int64 [rows] each."""
    assert held(cache, tables, extent)
    track = cache.tracks[extent.layer]
    first, per_page = extent.start // track.span, cache.page_size // track.span
    positions = np.arange(first, first + num_rows(cache, extent))
    return tables[track.group][positions // per_page], positions % per_page
