"""The paged KV cache: page tensors for the KV and recurrent states of all sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.cpu.huge_pages import zeros
from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.kv_cache.cross_pages import CrossPages
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
from baton_worker.spec import Decoder, KVReuse


class Track(NamedTuple):
    """The KV or states of one layer, as rows in the order in which they are transferred."""

    pages: Tensor
    """[num_pages, rows, ...]"""
    group: int
    span: int
    """Tokens per row. A state is one row per page; with context parallelism, each rank has one row
    per `size` tokens."""


class KVCache:
    """A pool of pages (PagedAttention, Kwon et al. 2023, arXiv:2309.06180).

    `layers[i]` is [num_pages, page_size, 2, num_kv_heads, head_dim]; index 0 of the third axis is
    the key, 1 the value. A slot is page * page_size + offset. The scheduler assigns pages to
    sequences; this class holds no requests. `layout` is the order in memory, reflected in the
    strides.

    Layers of several `groups` share memory: a page holds the KV of one group's layers at a time. If
    all groups have the same page shape, each plane of the pages is one tensor; otherwise a page is
    one block of bytes, and `layers` are views of parts of it. `planes` are the tensors that own the
    memory, each listed once: [num_pages, ...].

    For a layer with context parallelism (`spec.ContextShard`), a page holds this rank's tokens
    only.

    `spare` pages follow the allocatable ones and belong to no sequence; padding rows write there.

    With `codes`, pages are uint8 and their last axis is `kernels.kv_codes.row_width`; page copies
    are byte copies.
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
        allocate: Callable[..., Tensor] = zeros,
    ) -> None:
        """`allocate` makes the memory of the planes, like `huge_pages.zeros`."""
        self.num_pages = num_pages
        """Pages that can be allocated; the spare pages follow them."""
        self.spare = spare
        num_pages += spare
        self.page_size = page_size
        self.codes = codes
        self.layout = layout
        self.groups = one_group(spec, page_size) if groups is None else groups
        self.cross = CrossPages(spec, page_size, dtype=dtype, device=device, layout=layout)
        """Pages of the layers that attend to the states of an encoder."""
        self._contexts = [context(mixer) for mixer, _ in spec.layers]
        shapes, dtype = page_shapes(spec, page_size, codes), torch.uint8 if codes else dtype
        self.alike = are_alike(spec, self.groups, shapes)
        """Whether a page has the same shape in every plane, for all groups."""
        self.planes: list[Tensor] = []
        self.layers: list[Tensor] = []
        self.states: dict[int, Tensor] = {}
        """By layer with recurrent states: one state per page, float32 [num_pages, ...]."""
        # Zeros, not empty: attention reads whole pages and masks unwritten slots, but a masked NaN
        # still spreads.
        if self.alike:
            create = partial(layout.zeros, dtype=dtype, device=device, allocate=allocate)
            self.planes += [create((num_pages, *s)) for s in plane_shapes(self.groups, shapes)]
            numbers = self.groups.planes if self.planes else ()
            self.layers += [self.planes[number] for number in numbers]
        else:
            starts, size = offsets(self.groups, layer_bytes(spec, page_size, dtype, codes))
            self.planes.append(allocate((num_pages, size), dtype=torch.uint8, device=device))
            self._add_layer_views(starts, shapes, state_shapes(spec), dtype)
        self._views = self._mixer_views(spec)
        self.tracks = self._tracks()
        """Everything that a KV transfer moves: the tokens of each layer, then the states."""

    def _add_layer_views(
        self,
        starts: list[int],
        shapes: tuple[PageShape, ...],
        states: dict[int, StateShape],
        dtype: torch.dtype,
    ) -> None:
        """Create views into the bytes of a page: the tokens of each layer, then its state."""
        [memory] = self.planes
        for layer, (start, shape) in enumerate(zip(starts, shapes, strict=True)):
            end = start + math.prod(shape) * dtype.itemsize
            self.layers.append(self.layout.ordered(memory[:, start:end].view(dtype), shape))
            if (state := states.get(layer)) is not None:
                part = memory[:, end : end + state_bytes(state)]
                self.states[layer] = torch.unflatten(part.view(torch.float32), 1, state)

    def _mixer_views(self, spec: Decoder) -> list[Any]:
        """See `views`, without those of `cross`."""
        sources = {
            layer: mixer.source
            for layer, (mixer, _) in enumerate(spec.layers)
            if isinstance(mixer, KVReuse)
        }
        return [
            Snapshots(pages, self.states[layer])
            if layer in self.states
            else self.layers[sources.get(layer, layer)]
            for layer, pages in enumerate(self.layers)
        ]

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
        """Per layer, the argument of its mixer: its part of `layers`, with its states if it has
        any, of `cross`, or that of another layer."""
        if not self.cross.layers:
            return self._views
        crossed = self.cross.layers
        return [crossed.get(layer, view) for layer, view in enumerate(self._views)]

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages in all layers, pairwise. No page may be both a source and a target."""
        for plane in self.planes:
            plane[targets] = plane[sources]

    def move(
        self,
        group: int,
        sources: tuple[list[int], list[int]],
        targets: tuple[list[int], list[int]],
    ) -> None:
        """Copy the KV of tokens in all layers of a group, pairwise: (pages, offsets in them). All
        sources are read before a target is written."""
        for layer, pages in enumerate(self.layers):
            if self.groups.of[layer] == group:
                pages[targets] = pages[sources]

    def begin(self, batch: Any, layers: slice = slice(None)) -> None:
        """Zero the pages that the step `batch`, an `AttentionBatch`, writes from their start, in
        these layers.

        Needed because the bytes left by another group may decode to NaN or infinity.
        """
        if self.alike:
            return
        chosen = range(len(self.groups.of))[layers]
        for group in range(len(self.groups.windows)):
            part = batch.of(group)
            if len(part.started_pages):
                for layer in chosen:
                    if self.groups.of[layer] == group:
                        self._forget(layer, part.started_pages, part.first)

    def _forget(self, layer: int, started_pages: Tensor, first: Tensor) -> None:
        """Zero the tokens of pages in `started_pages`, and the states of pages in `first`. Other
        states are overwritten before they are read."""
        self.layers[layer].index_fill_(0, started_pages, 0)
        if layer in self.states and len(first):
            self.states[layer].index_fill_(0, first, 0)

    def clear(self, page: int, first: int = 0, group: int = 0) -> None:
        """Zero a page. With `first`, only from that token on, in the layers of `group` if groups
        have different page shapes, else in all layers."""
        if not (self.alike or first):
            self.planes[0][page] = 0
            return
        for layer, pages in enumerate(self.layers):
            if self.alike or self.groups.of[layer] == group:
                pages[page, self._row(layer, first) :] = 0

    def zero(self) -> None:
        """Zero all pages."""
        for plane in self.planes:
            plane.zero_()

    def _row(self, layer: int, token: int) -> int:
        """First row of a page that belongs to token number `token` or a later one."""
        rank, size = self._contexts[layer]
        return -((rank - token) // size)

    def key(self, layer: int) -> Tensor:
        """View of a layer's keys: [num_pages, page_size, num_kv_heads, last axis]."""
        return self.layers[layer][:, :, 0]

    def value(self, layer: int) -> Tensor:
        """View of a layer's values: [num_pages, page_size, num_kv_heads, last axis]."""
        return self.layers[layer][:, :, 1]
