"""Page tensors: where what every sequence has left behind lives."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.cpu.huge_pages import zeros
from baton_worker.kernels.kv_pages import KVCodes
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.ssm_states import Snapshots
from baton_worker.kv_cache.layer_groups import (
    LayerGroups,
    are_alike,
    offsets,
    one_group,
    plane_shapes,
)
from baton_worker.kv_cache.page_shapes import (
    PageShape,
    StateShape,
    context,
    layer_bytes,
    page_shapes,
    state_bytes,
    state_shapes,
)
from baton_worker.spec import Decoder


class Track(NamedTuple):
    """What one layer keeps, row by row, as it travels."""

    pages: Tensor
    """[num_pages, rows, ...]"""
    group: int
    span: int
    """Tokens per row: a state is one row of a page; ranks that share tokens have a row of each."""


class KVCache:
    """A pool of pages (paged attention, Kwon et al. 2023, arXiv:2309.06180).

    `layers[i]` is [num_pages, page_size, 2, num_kv_heads, head_dim]; index 0 of the third axis is
    the key, 1 the value. A slot is page * page_size + offset. Who owns which page is the
    scheduler's business; nothing here knows requests. `layout` is the order in memory, which the
    strides tell.

    Layers of several `groups` share memory: a page holds what the layers of one group keep,
    whichever group it belongs to at the time. Where that has one shape in all groups, a plane of
    the pages is one tensor; else a page is one block of bytes, and `layers` are views of their
    parts of it. `planes` are the tensors that own the memory, each once: [num_pages, ...].

    Of a layer whose tokens several ranks share (`spec.ContextShard`), a page has those of this
    rank.

    `spare` pages follow those that sequences are given: what is written there is nobody's.

    With `codes` pages are uint8 and their last axis is `kernels.pages.row_width`: whoever copies
    pages copies bytes.
    """

    def __init__(
        self,
        spec: Decoder,
        num_pages: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        codes: KVCodes | None = None,
        layout: Layout = Layout.NHD,
        groups: LayerGroups | None = None,
        spare: int = 0,
    ) -> None:
        self.num_pages = num_pages
        """Those that sequences are given; behind them come the spare ones."""
        num_pages += spare
        self.page_size = page_size
        self.codes = codes
        self.layout = layout
        self.groups = one_group(spec, page_size) if groups is None else groups
        self._contexts = [context(mixer) for mixer, _ in spec.layers]
        shapes, dtype = page_shapes(spec, page_size, codes), torch.uint8 if codes else dtype
        self.alike = are_alike(spec, self.groups, shapes)
        """A page of any group has the same shape in every plane."""
        self.planes: list[Tensor] = []
        self.layers: list[Tensor] = []
        self.states: dict[int, Tensor] = {}
        """By layer that keeps states of its pages, float32 [num_pages, ...]."""
        # Zeros, not empty: attention reads whole pages and masks what is not written yet, and a
        # masked NaN would still spread.
        if self.alike:
            for shape in plane_shapes(self.groups, shapes):
                full = (num_pages, *shape)
                self.planes.append(layout.zeros(full, dtype=dtype, device=device))
            numbers = self.groups.planes if self.planes else ()
            self.layers += [self.planes[number] for number in numbers]
        else:
            starts, size = offsets(self.groups, layer_bytes(spec, page_size, dtype, codes))
            self.planes.append(zeros((num_pages, size), dtype=torch.uint8, device=device))
            self._cut(starts, shapes, state_shapes(spec), dtype)
        self.tracks = self._tracks()
        """Everything there is to pass on: the tokens of each layer, then the states."""

    def _cut(
        self,
        starts: list[int],
        shapes: tuple[PageShape, ...],
        states: dict[int, StateShape],
        dtype: torch.dtype,
    ) -> None:
        """Make views of the bytes of a page: each layer's tokens, then its state."""
        [memory] = self.planes
        for layer, (start, shape) in enumerate(zip(starts, shapes, strict=True)):
            end = start + math.prod(shape) * dtype.itemsize
            self.layers.append(self.layout.ordered(memory[:, start:end].view(dtype), shape))
            if (state := states.get(layer)) is not None:
                part = memory[:, end : end + state_bytes(state)]
                self.states[layer] = torch.unflatten(part.view(torch.float32), 1, state)

    def _tracks(self) -> list[Track]:
        of = self.groups.of
        tokens = [
            Track(pages, of[layer], self._contexts[layer].size)
            for layer, pages in enumerate(self.layers)
        ]
        states = self.states.items()
        return tokens + [Track(s[:, None], of[layer], self.page_size) for layer, s in states]

    @property
    def views(self) -> list[Any]:
        """What the mixer of each layer is handed: its part of `layers`, with its states if it has
        any."""
        return [
            Snapshots(pages, self.states[layer]) if layer in self.states else pages
            for layer, pages in enumerate(self.layers)
        ]

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages in all layers, pairwise. No page is both a source and a target."""
        for plane in self.planes:
            plane[targets] = plane[sources]

    def begin(self, batch: Any) -> None:
        """Forget what was in the pages that a step, an `AttentionBatch`, writes from their start.

        What one group has left in a page need not be finite numbers for the next one to have it.
        """
        if self.alike:
            return
        for group in range(len(self.groups.windows)):
            part = batch.of(group)
            if len(begun := part.begun):
                for layer, of in enumerate(self.groups.of):
                    if of == group:
                        self._forget(layer, begun, part.first)

    def _forget(self, layer: int, begun: Tensor, first: Tensor) -> None:
        """Tokens of pages that begin; states of those with which sequences begin, since all others
        are given one before anybody reads it."""
        self.layers[layer][begun] = 0
        if layer in self.states and len(first):
            self.states[layer][first] = 0

    def clear(self, page: int, first: int = 0, group: int = 0) -> None:
        """Zero a page in all layers; from its token number `first` on, if it is of this group."""
        if not (self.alike or first):
            self.planes[0][page] = 0
            return
        for layer, pages in enumerate(self.layers):
            if self.alike or self.groups.of[layer] == group:
                pages[page, self._row(layer, first) :] = 0

    def _row(self, layer: int, token: int) -> int:
        """The first row of a page that is of this token or a later one."""
        rank, size = self._contexts[layer]
        return -((rank - token) // size)

    def key(self, layer: int) -> Tensor:
        """View of the keys of a layer: [num_pages, page_size, num_kv_heads, last axis]."""
        return self.layers[layer][:, :, 0]

    def value(self, layer: int) -> Tensor:
        """View of the values of a layer: [num_pages, page_size, num_kv_heads, last axis]."""
        return self.layers[layer][:, :, 1]
