"""Launches of paged attention: sizes of tiles, and how keys are shared among programs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.triton import has_room, power
from baton_worker.kernels.triton.attention import tile

PARTITION = 512
"""Keys of one program where rows have few new tokens; a multiple of every key block."""
MOST_PARTITIONS = 64
"""Of a row; the keys of a partition are doubled until there are no more. So a captured step has
memory for sums of rows of any length. Rows with the bits of prompts, see `attend`, have as many as
they need."""
_FEWEST_ROWS = 16
"""Rows of the smallest product of a tensor core."""
_TILE_ROWS, _MOST_ROWS = 64, 128
"""Rows of a tile of long rows, and where there is room for more."""
_MOST_HEADS = 64
"""Query heads of one program; those that share a key head are dealt out evenly."""
_MOST_LATENT_HEADS = 16
"""As much as a tile of 512 channels leaves room for."""
_NARROW = 256
"""Bytes of the channels of a head of 128 in 16 bits."""
_PER_MULTIPROCESSOR = 4
"""Programs that are in flight on one, or waiting to be."""


def _tiles(
    least: int, large: int, lengths: tuple[int, int, int], exact: bool
) -> list[tuple[int, tuple[int, int]]]:
    """Of each launch the rows of a tile, and the fewest and most new tokens of its rows. With the
    tile of long rows a short one would have the sums of another order: it has a launch of its own,
    so that no row depends on what is beside it.

    Args:
        least, large: rows of a tile of short rows and of long ones.
        lengths: the fewest tokens of a row, the most of a short row, and the most of a row.
    """
    shortest, few_tokens, longest = lengths
    if exact:
        return [(large, (0, longest))]
    launches = []
    if shortest <= few_tokens:
        launches.append((least, (0, few_tokens)))
    if longest > few_tokens:
        launches.append((large, (few_tokens + 1, longest)))
    return launches


def shared(group: int, latent: bool = False) -> int:
    """Query heads of one program, of `group` that share a key head."""
    return -(-group // -(-group // (_MOST_LATENT_HEADS if latent else _MOST_HEADS)))


def few(heads: int) -> int:
    """New tokens up to which a row's keys are cut into partitions: those of the smallest tile, with
    so many `heads` each. It depends on the layer alone, so that a row's neighbours do not decide
    how it is computed."""
    return max(_FEWEST_ROWS, power(heads)) // heads


def partitions(longest: int, exact: bool) -> int:
    """Most partitions of a row of at most so many tokens."""
    wanted = -(-longest // PARTITION)
    return wanted if exact else min(wanted, MOST_PARTITIONS)


def _programs(device: torch.device, tiles: int) -> int:
    """Programs of one tile that fill the device beside those of the other tiles."""
    return -(-_PER_MULTIPROCESSOR * _multiprocessors(device) // max(1, tiles))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _tile(channels: int) -> int:
    """Channels of the tile that has room for so many."""
    return max(16, power(channels))


def attend(
    query: Tensor,
    pages: Tensor,
    *,
    page_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    places: Tensor,
    split_tokens: int,
    partitions: int,
    longest: int,
    scale: float,
    shortest: int = 1,
    exact: bool = False,
    softcap: float | None,
    slopes: Tensor | None,
    window: int | None,
    chunk: int | None,
    sinks: Tensor | None,
    code: int,
    value_dim: int | None = None,
    value_offset: int | None = None,
    latent: bool = False,
    ranges: Tensor | None = None,
    ancestors: Tensor | None = None,
    depths: Tensor | None = None,
    last_keys: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attention of a ragged step; the twin is `attention.backends.reference`.

    Args:
        query: [T, num_heads, head_dim], any row stride.
        pages: [num_pages, page_size, 1 if `latent` else 2, num_kv_heads, head_dim], in either
            layout; with a `code` uint8, the last axis `row_width`.
        page_table, lengths, query_starts: see `AttentionBatch`.
        places: int32 [B], the first of a split row's tokens among all that are split, -1 for a
            row that is not.
        split_tokens, partitions: how many tokens are split, into how many partitions at most.
        longest, shortest: most and fewest new tokens of a row.
        exact: a token has the same bits whether its row is short or long. Without it, it has the
            same bits beside any other rows.
        slopes: float32 [num_heads], ALiBi.
        sinks: [num_heads] or [T, num_heads].
        code: `KVCodes.number` of the pages, 0 for plain numbers.
        value_dim: channels of a value, where not those of a key.
        value_offset: how far behind its key a value is, where both are in one plane of the pages.
        latent: the first `value_dim` channels of a key are its value. Then there are no codes.
        ranges: int32 [B, 2], see `AttentionBatch.ranges`.
        ancestors, depths: see `attention.trees.TreeMask`.
        last_keys: int32 [T], see `AttentionBatch.last_keys`.
        lse: float32 [T, num_heads], filled; see `attention.Backend.forward`.

    Returns:
        [T, num_heads * value_dim].
    """
    shape = _Shape.of(query, pages, value_dim, latent, exact)
    tokens, num_heads, num_rows = len(query), shape.num_heads, len(lengths)
    out = query.new_empty((tokens, num_heads * shape.width))
    parts = (split_tokens, num_heads, partitions)
    sums = query.new_empty((*parts, shape.values), dtype=torch.float32)
    states = query.new_empty((*parts, 2), dtype=torch.float32)
    sinks = None if sinks is None else sinks.float().contiguous()
    sinks_stride = 0 if sinks is None or sinks.ndim == 1 else num_heads
    page, token, plane, head = pages.stride()[:4]
    plane = plane if value_offset is None else value_offset
    given: Any = (query, pages, sinks, slopes, page_table, lengths, query_starts, places)
    given += (ranges, ancestors, depths, last_keys, out, lse, sums, states)
    counts = (num_rows, page_table.shape[1], partitions)
    strides = (query.stride(0), page, token, plane, head, sinks_stride)
    numbers = (scale, softcap or 0.0, window or 0, chunk or 0)
    common = shape.results(window, chunk, sinks, ranges, lse)
    features: Any = dict(
        CODES=code,
        CAPPED=softcap is not None,
        SLOPED=slopes is not None,
        TREE=ancestors is not None,
        SPANS=last_keys is not None,
        EXACT=exact,
    )
    masks: Any = (window, chunk, slopes, ranges, ancestors, last_keys)
    features["UNMASKED"] = not latent and all(mask is None for mask in masks)
    lengths_of = (shortest, few(shape.shared), longest)
    for rows, of_rows in _tiles(shape.least, shape.large, lengths_of, exact):
        tiles = tokens // (rows // shape.shared) + num_rows
        programs = _programs(query.device, tiles * shape.deals)
        launch: Any = tile.attend[tiles, shape.deals, min(max(1, partitions), programs)]
        launch(
            *(*given, *counts, *of_rows, *strides, *numbers),
            **common | features | shape.constants(pages.shape[1], rows),
            num_warps=shape.warps(rows),
            num_stages=2,
        )
    if split_tokens:
        launch = tile.merge[num_rows, num_heads]
        launch(
            *(sinks, query_starts, lengths, places, out, lse, sums, states),
            *(partitions, sinks_stride, window or 0, chunk or 0),
            **common,
            num_warps=1,
        )
    return out


class _Shape(NamedTuple):
    """Heads and channels of a layer, and the tiles that they fit into."""

    num_heads: int
    group: int
    """Query heads that share a key head."""
    shared: int
    """Those of them in one program."""
    deals: int
    """Programs that the heads of a token are dealt out to."""
    head_dim: int
    dim: int
    """Channels of a tile of keys."""
    width: int
    """Channels of a value."""
    values: int
    """Channels of a tile of values."""
    latent: bool
    rest: int
    """Channels of a tile behind those that are the value too."""
    widest: int
    """Bytes of the channels of a tile, whatever the type and the width: what a program holds in
    registers and in shared memory."""
    exact: bool
    roomy: bool
    """Whether tiles of most rows and keys fit, registers included."""

    @classmethod
    def of(
        cls, query: Tensor, pages: Tensor, value_dim: int | None, latent: bool, exact: bool
    ) -> _Shape:
        """The shape of queries [T, num_heads, head_dim] over pages; see `attend`."""
        _, num_heads, head_dim = query.shape
        num_kv_heads = pages.shape[3]
        group = num_heads // num_kv_heads
        width = head_dim if value_dim is None else value_dim
        values, rest = _tile(width), head_dim - width if latent else 0
        dim, heads = values if latent else _tile(head_dim), shared(group, latent)
        widest = max(dim, values) * query.element_size()
        plain = not exact and pages.dtype == query.dtype
        roomy = plain and widest <= _NARROW and has_room(query.device)
        return cls(
            *(num_heads, group, heads, num_kv_heads * -(-group // heads), head_dim, dim),
            *(width, values, latent, _tile(rest) if rest else 0, widest),
            *(exact, roomy),
        )

    @property
    def least(self) -> int:
        """Rows of a tile of short rows."""
        return max(_FEWEST_ROWS, power(self.shared))

    @property
    def large(self) -> int:
        """Rows of a tile of long rows."""
        if self.roomy:
            return _MOST_ROWS
        return max(self.least, _TILE_ROWS if self.widest <= _NARROW else 32)

    @property
    def _keys(self) -> int:
        """Keys of a tile."""
        if self.widest <= _NARROW:
            return 128 if self.roomy else 64
        return 32 if self.widest <= 1024 else 16

    def warps(self, rows: int) -> int:
        """Warps of a program with so many rows."""
        is_wide = max(self.dim, self.values) > 128 or rows >= _MOST_ROWS
        return 8 if is_wide or self.exact else 4

    def results(
        self,
        window: int | None,
        chunk: int | None,
        sinks: Tensor | None,
        ranges: Tensor | None,
        lse: Tensor | None,
    ) -> dict[str, int | bool]:
        """Constants of a tile and of the merge of partitions."""
        return {
            "NUM_HEADS": self.num_heads,
            "VALUE_DIM": self.width,
            "VALUES": self.values,
            "WINDOWED": window is not None,
            "CHUNKED": chunk is not None,
            "SINKS": sinks is not None,
            "RANGED": ranges is not None,
            "LSE": lse is not None,
            "SPAN": PARTITION,
            "MOST": 0 if self.exact else MOST_PARTITIONS,
        }

    def constants(self, page_size: int, rows: int) -> dict[str, int | bool]:
        """Constants of a tile of so many rows."""
        return {
            "GROUP": self.group,
            "SHARED": self.shared,
            "HEAD_DIM": self.head_dim,
            "DIM": self.dim,
            "LATENT": self.latent,
            "REST": self.rest,
            "PAGE_SIZE": page_size,
            "ROWS": rows,
            "KEYS": self._keys,
        }
