"""The form in which keys and values travel: token after token, whatever the pages look like.

A block is [tokens, 2 (key, value), num_kv_heads, width]: pages of another size or another layout
are written with the same numbers. Where pages keep states beside their tokens, these follow the
layers: one number after the other in `Extent.layer`, a row for each page that the tokens touch. The
two ends have pages of one size then.
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
"""Most bytes in one block, unless one token takes more. Two of them fit into a core's cache."""
_LINE = 64

_NONE = 0xFFFFFFFF
"""On the wire, in the place of a page that is not held."""

Ints = NDArray[np.int64]
Tables = Ints
"""Pages of a sequence from its first token on, [groups of layers, blocks]; -1 where there is none.
"""


@dataclass(frozen=True, slots=True)
class Extent:
    """Tokens start .. end - 1 of one layer, or the states of the pages that they are in."""

    layer: int
    """A number of `KVCache.tracks`."""
    start: int
    end: int


def token_bytes(cache: KVCache, layer: int) -> int:
    """Bytes that one token takes in one layer, or one state."""
    pages = cache.tracks[layer].pages
    return pages[0, 0].numel() * pages.element_size()


def num_rows(cache: KVCache, extent: Extent) -> int:
    """Rows of a block that holds an extent."""
    span = cache.tracks[extent.layer].span
    return -(-extent.end // span) - extent.start // span


def dtype_name(cache: KVCache, layer: int) -> str:
    """How the numbers of a layer are stored: the two sides must agree."""
    if cache.codes is not None:
        return cache.codes.name
    return str(cache.tracks[layer].pages.dtype).removeprefix("torch.")


def tables(cache: KVCache, pages: bytes) -> Tables:
    """The tables of a `Grant` or a `Pull`.

    Raises:
        ValueError: they are not of this cache.
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
    """Whether there is a page for every token of an extent."""
    size = cache.page_size
    row = tables[cache.tracks[extent.layer].group]
    blocks = row[extent.start // size : -(-extent.end // size)]
    return extent.end <= len(row) * size and bool((blocks >= 0).all())


def extents(cache: KVCache, start: int, end: int, tables: Tables | None = None) -> list[Extent]:
    """All layers of tokens start .. end - 1 that keep anything, cut so that each piece fits into
    one block. With `tables`, only of tokens that these have pages for, which are the last ones."""
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
    """The first token of a layer that there is a page for."""
    row = tables[track.group]
    there = np.flatnonzero(row >= 0)
    return int(there[0] if len(there) else len(row)) * cache.page_size


def layout(cache: KVCache) -> str:
    """What a token takes in each layer, and a state, which is one of so many tokens: only workers
    of equal layouts pass keys on."""
    return ",".join(
        f"{dtype_name(cache, number)}x{token_bytes(cache, number)}"
        + (f"/{track.span}" if track.span > 1 else "")
        for number, track in enumerate(cache.tracks)
    )


def block_bytes(cache: KVCache, extent: Extent) -> int:
    """Bytes of the block that holds an extent."""
    return num_rows(cache, extent) * token_bytes(cache, extent.layer)


def place_bytes(cache: KVCache) -> int:
    """Bytes that any block of this cache fits into, a multiple of a cache line."""
    widest = max((token_bytes(cache, number) for number in range(len(cache.tracks))), default=0)
    return -(-max(BLOCK_BYTES, widest) // _LINE) * _LINE


def read(cache: KVCache, tables: Tables, extent: Extent, into: Bytes) -> None:
    """Put what the pages of a sequence hold of these tokens into the block `into`, uint8
    [`block_bytes`]."""
    layer = cache.tracks[extent.layer].pages
    where, offset = _places(cache, tables, extent)
    if layer.device.type != "cpu":
        device = layer.device
        found = layer[torch.from_numpy(where).to(device), torch.from_numpy(offset).to(device)]
        into[:] = found.contiguous().view(torch.uint8).flatten().cpu().numpy()
        return
    numbers = layer.view(torch.uint8).numpy()
    if layer.is_contiguous():
        slots = where * layer.shape[1] + offset
        rows = numbers.reshape(layer.shape[0] * layer.shape[1], -1)
        np.take(rows, slots, axis=0, out=into.reshape(len(slots), -1), mode="clip")
    else:
        into.reshape(-1, *numbers.shape[2:])[:] = numbers[where, offset]


def write(cache: KVCache, tables: Tables, extent: Extent, block: Bytes) -> None:
    """Put into the pages of a sequence what `read` gave elsewhere.

    Raises:
        ValueError: the block has not the size of these tokens in this cache.
    """
    layer = cache.tracks[extent.layer].pages
    if len(block) != block_bytes(cache, extent):
        raise ValueError(f"{len(block)} bytes are not {extent.end - extent.start} tokens")
    where, offset = _places(cache, tables, extent)
    if layer.device.type != "cpu":
        device = layer.device
        there = torch.from_numpy(where).to(device), torch.from_numpy(offset).to(device)
        came = torch.from_numpy(block.copy()).view(layer.dtype).to(device)
        layer[there] = came.view(-1, *layer.shape[2:])
        torch.cuda.synchronize(device)  # The next step may run before the copy otherwise.
        return
    numbers = layer.view(torch.uint8).numpy()
    if layer.is_contiguous():
        slots = where * layer.shape[1] + offset
        rows = numbers.reshape(layer.shape[0] * layer.shape[1], -1)
        rows[slots] = block.reshape(len(slots), -1)
    else:
        numbers[where, offset] = block.reshape(-1, *numbers.shape[2:])


def _places(cache: KVCache, tables: Tables, extent: Extent) -> tuple[Ints, Ints]:
    """Page and offset of each row, int64 [rows]."""
    assert held(cache, tables, extent)
    track = cache.tracks[extent.layer]
    first, per_page = extent.start // track.span, cache.page_size // track.span
    positions = np.arange(first, first + num_rows(cache, extent))
    return tables[track.group][positions // per_page], positions % per_page
