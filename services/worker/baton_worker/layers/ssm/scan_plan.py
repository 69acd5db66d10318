"""A step split into scans: pages that are processed token by token from their first one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.ssm_states import Chains
from baton_worker.layers.ssm.page_segments import (
    Column,
    Cut,
    Pieces,
    Turn,
    pages_of,
)
from baton_worker.layers.ssm.short_conv import Earlier

AT_ONCE = 16
"""Number of pages scanned side by side, so that their states fit a CPU cache."""


class Walk(NamedTuple):
    """Pages that are scanned side by side."""

    pages: Tensor
    """int64 [n]"""
    first: int
    """No token before this index within its page is new."""
    last: int
    """End of the scan within the page, exclusive."""


@dataclass(frozen=True, slots=True)
class Walks:
    """The scans of a step."""

    turns: list[Turn]
    """First the first starting page of each sequence, then the second ones, ..."""
    walks: list[Walk]
    """Each page with new tokens once, grouped by the end of the scan: in a decode step each
    sequence ends at its own place in the page."""
    places: Tensor
    """int64 [T]: index of each token in the concatenated outputs of the scans, page by page."""
    chains: Chains
    """Pages in order, each with its new tokens."""
    earlier: Earlier
    """Slots of the preceding tokens, for convolutions."""

    def spread(self, tokens: Tensor) -> list[Tensor]:
        """[T, ...] of the new tokens to one [n, last - first, ...] per scan, zero elsewhere."""
        sizes = [len(walk.pages) * (walk.last - walk.first) for walk in self.walks]
        rows = tokens.new_zeros((sum(sizes), *tokens.shape[1:]))
        rows[self.places] = tokens
        return [
            torch.unflatten(part, 0, (len(walk.pages), -1))
            for walk, part in zip(self.walks, torch.split(rows, sizes), strict=True)
        ]

    def gather(self, parts: list[Tensor]) -> Tensor:
        """The inverse of `spread`: back to [T, ...]."""
        return torch.cat([part.flatten(0, 1) for part in parts])[self.places]


@dataclass(frozen=True, slots=True)
class Scans:
    """Plans a step like an attention backend, once for all layers of a group with equally many
    convolution taps."""

    taps: int = 1
    capture_blocker: ClassVar[str] = "a scan looks on the host for the pages that a step walks"
    launch_blocker: ClassVar[None] = None

    def plan(self, batch: AttentionBatch, call: Scans) -> Walks:
        """Split the step, once for all layers of a group."""
        cut = Cut(call.taps)
        segments = cut.plan(batch, cut)
        row, position = batch.flat()
        pieces = Pieces.of(row, position, batch.page_size)
        counts = np.diff(pieces.begin)
        order = np.lexsort((pieces.first, pieces.first + counts))
        pages = pages_of(batch, pieces.row[order], pieces.page[order])
        walks, places = _walks(pages, pieces.first[order], counts[order])
        assert segments.turns is not None, "the host has split the step"
        place = np.empty_like(places)
        place[order] = places
        places = np.repeat(place - pieces.begin[:-1], counts) + np.arange(len(row))
        return Walks(
            segments.turns,
            walks,
            torch.from_numpy(places).to(batch.slot_mapping.device),
            segments.chains,
            segments.earlier,
        )


def _walks(pages: Tensor, begin: Column, count: Column) -> tuple[list[Walk], Column]:
    """Scans of pages int64 [N] in order, and the index of each page's first new token in their
    concatenated outputs."""
    walks, places, total = list[Walk](), np.empty_like(begin), 0
    for start in range(0, len(begin), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        first, last = int(begin[some].min()), int((begin + count)[some].max())
        size = len(begin[some])
        places[some] = total + np.arange(size) * (last - first) + begin[some] - first
        walks.append(Walk(pages[some], first, last))
        total += size * (last - first)
    return walks, places
