"""Launches of paged attention: sizes of tiles, and how keys are shared among programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.triton import has_room, multiprocessors, power
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


def heads_per_program(group: int, latent: bool = False) -> int:
    """Query heads of one program, of `group` that share a key head."""
    return -(-group // -(-group // (_MOST_LATENT_HEADS if latent else _MOST_HEADS)))


def most_split_tokens(heads: int) -> int:
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
    return -(-_PER_MULTIPROCESSOR * multiprocessors(device) // max(1, tiles))


def _tile(channels: int) -> int:
    """Channels of the tile that has room for so many."""
    return max(16, power(channels))


class Step(NamedTuple):
    """The rows of a step, see `AttentionBatch`."""

    page_table: Tensor
    """int32 [B, pages]"""
    lengths: Tensor
    """int32 [B]: tokens of a row, the new ones included."""
    query_starts: Tensor
    """int32 [B + 1]"""
    shortest: int
    """Fewest new tokens of a row."""
    longest: int
    """Most new tokens of a row."""
    split_starts: Tensor
    """int32 [B]: the first of a split row's tokens among those of all split rows, -1 for a row that
    is not split."""
    split_tokens: int
    """Tokens of all split rows."""
    partitions: int
    """Most partitions of a row."""


class Scores(NamedTuple):
    """How a layer computes scores and reads its pages."""

    scale: float
    softcap: float | None = None
    code: int = 0
    """`KVCodes.number` of the pages, 0 for plain numbers."""
    value_dim: int | None = None
    """Channels of a value, where not those of a key."""
    value_offset: int | None = None
    """Elements from a key to its value, where both are in one plane of the pages."""
    latent: bool = False
    """The first `value_dim` channels of a key are its value. Then there are no codes."""
    exact: bool = False
    """A token has the same bits whether its row is short or long. Without it, it has the same bits
    beside any other rows."""


class Masks(NamedTuple):
    """Which keys a query sees, if not all up to its own, and the biases of ALiBi."""

    window: int | None = None
    chunk: int | None = None
    slopes: Tensor | None = None
    """float32 [num_heads], ALiBi."""
    ranges: Tensor | None = None
    """int32 [B, 2], see `AttentionBatch.ranges`."""
    ancestors: Tensor | None = None
    """int64 [T], see `attention.tree_mask.TreeMask`."""
    depths: Tensor | None = None
    last_keys: Tensor | None = None
    """int32 [T], see `AttentionBatch.last_keys`."""

    @property
    def is_causal(self) -> bool:
        """Whether a query sees all keys up to its own, without biases."""
        limits = (self.window, self.chunk, self.slopes, self.ranges, self.ancestors, self.last_keys)
        return all(limit is None for limit in limits)


class _Buffers(NamedTuple):
    """What a step writes."""

    out: Tensor
    """[T, num_heads * value_dim]"""
    lse: Tensor | None
    sums: Tensor
    """float32 [split tokens, num_heads, partitions, tile of values]: sums before the merge."""
    states: Tensor
    """float32 [split tokens, num_heads, partitions, 2]: the maximum and the sum of weights."""

    @classmethod
    def empty(cls, query: Tensor, shape: _Shape, step: Step, lse: Tensor | None) -> _Buffers:
        """For queries [T, num_heads, head_dim]."""
        heads = shape.num_heads
        parts = (step.split_tokens, heads, step.partitions)
        return cls(
            query.new_empty((len(query), heads * shape.width)),
            lse,
            query.new_empty((*parts, shape.values), dtype=torch.float32),
            query.new_empty((*parts, 2), dtype=torch.float32),
        )


def attend(
    query: Tensor,
    pages: Tensor,
    step: Step,
    scores: Scores,
    masks: Masks,
    *,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attention of a ragged step; the twin is `attention.backends.reference`.

    Args:
        query: [T, num_heads, head_dim], any row stride.
        pages: [num_pages, page_size, 1 if `latent` else 2, num_kv_heads, head_dim], in either
            layout; with a `code` uint8, the last axis `row_width`.
        sinks: [num_heads] or [T, num_heads].
        lse: float32 [T, num_heads], filled; see `attention.Backend.forward`.

    Returns:
        [T, num_heads * value_dim].
    """
    sinks = None if sinks is None else sinks.float().contiguous()
    shape = _Shape.of(query, pages, scores)
    buffers = _Buffers.empty(query, shape, step, lse)
    launch = _Launch(query, pages, step, scores, masks, sinks, buffers, shape)
    launch.run_tiles()
    if step.split_tokens:
        launch.run_merge()
    return buffers.out


class _Launch(NamedTuple):
    """The arguments of both kernels, see `attend`."""

    query: Tensor
    pages: Tensor
    step: Step
    scores: Scores
    masks: Masks
    sinks: Tensor | None
    buffers: _Buffers
    shape: _Shape

    def run_tiles(self) -> None:
        """Launch `tile.attend`, for short rows and for long ones."""
        query, step, shape = self.query, self.step, self.shape
        lengths = (step.shortest, most_split_tokens(shape.shared), step.longest)
        constants = self._results() | self._features()
        for rows, bounds in _tiles(shape.least, shape.large, lengths, shape.exact):
            tiles = len(query) // (rows // shape.shared) + len(step.lengths)
            programs = _programs(query.device, tiles * shape.deals)
            launch: Any = tile.attend[tiles, shape.deals, min(max(1, step.partitions), programs)]
            launch(
                *(*self._tensors(), *self._counts(), *bounds, *self._strides(), *self._numbers()),
                **constants | shape.constants(self.pages.shape[1], rows),
                num_warps=shape.warps(rows),
                num_stages=2,
            )

    def run_merge(self) -> None:
        """Launch `tile.merge` over the partitions of split rows."""
        step, masks = self.step, self.masks
        launch: Any = tile.merge[len(step.lengths), self.shape.num_heads]
        launch(
            *(self.sinks, step.query_starts, step.lengths, step.split_starts, *self.buffers),
            *(step.partitions, self._sinks_stride, masks.window or 0, masks.chunk or 0),
            **self._results(),
            num_warps=1,
        )

    def _tensors(self) -> tuple[Tensor | None, ...]:
        step, masks = self.step, self.masks
        rows = (step.page_table, step.lengths, step.query_starts, step.split_starts)
        limits = (masks.ranges, masks.ancestors, masks.depths, masks.last_keys)
        return (self.query, self.pages, self.sinks, masks.slopes, *rows, *limits, *self.buffers)

    def _counts(self) -> tuple[int, ...]:
        return len(self.step.lengths), self.step.page_table.shape[1], self.step.partitions

    def _strides(self) -> tuple[int, ...]:
        page, token, plane, head = self.pages.stride()[:4]
        value = plane if self.scores.value_offset is None else self.scores.value_offset
        return (self.query.stride(0), page, token, value, head, self._sinks_stride)

    @property
    def _sinks_stride(self) -> int:
        """Elements between the sinks of two tokens: 0 where all tokens have the same."""
        return 0 if self.sinks is None or self.sinks.ndim == 1 else self.shape.num_heads

    def _numbers(self) -> tuple[float, ...]:
        scores, masks = self.scores, self.masks
        return (scores.scale, scores.softcap or 0.0, masks.window or 0, masks.chunk or 0)

    def _results(self) -> dict[str, int | bool]:
        """Constants of a tile and of the merge of partitions."""
        return {
            "NUM_HEADS": self.shape.num_heads,
            "VALUE_DIM": self.shape.width,
            "VALUES": self.shape.values,
            "WINDOWED": self.masks.window is not None,
            "CHUNKED": self.masks.chunk is not None,
            "SINKS": self.sinks is not None,
            "RANGED": self.masks.ranges is not None,
            "LSE": self.buffers.lse is not None,
            "SPAN": PARTITION,
            "MOST": 0 if self.shape.exact else MOST_PARTITIONS,
        }

    def _features(self) -> dict[str, int | bool]:
        """Constants of a tile alone that do not depend on its size."""
        scores, masks = self.scores, self.masks
        return {
            "CODES": scores.code,
            "CAPPED": scores.softcap is not None,
            "SLOPED": masks.slopes is not None,
            "TREE": masks.ancestors is not None,
            "SPANS": masks.last_keys is not None,
            "EXACT": scores.exact,
            "UNMASKED": not scores.latent and masks.is_causal,
        }


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
    def of(cls, query: Tensor, pages: Tensor, scores: Scores) -> _Shape:
        """The shape of queries [T, num_heads, head_dim] over pages; see `attend`."""
        _, num_heads, head_dim = query.shape
        num_kv_heads = pages.shape[3]
        group, latent, exact = num_heads // num_kv_heads, scores.latent, scores.exact
        width = head_dim if scores.value_dim is None else scores.value_dim
        values, rest = _tile(width), head_dim - width if latent else 0
        dim, heads = values if latent else _tile(head_dim), heads_per_program(group, latent)
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
