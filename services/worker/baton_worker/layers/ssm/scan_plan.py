"""A step cut into walks: pages that are gone through token by token, from their first one on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.ssm_states import Chains
from baton_worker.layers.ssm.page_segments import (
    Column,
    Cut,
    Pieces,
    Turn,
    pages_of,
)
from baton_worker.layers.ssm.short_conv import Earlier

AT_ONCE = 16
"""Pages that are walked side by side: their states should stay in a cache."""


class Walk(NamedTuple):
    """Some pages that are walked side by side."""

    pages: Tensor
    """int64 [n]"""
    first: int
    """No token before this one of its page is new."""
    last: int
    """The walk ends before this one."""


@dataclass(frozen=True, slots=True)
class Walks:
    """What a recurrence does in a step."""

    turns: list[Turn]
    """Of each sequence the first page that begins, then of each the second, ..."""
    walks: list[Walk]
    """Each page that has new tokens once. Those that end alike walk together: a step of one token
    per sequence goes as far as each has come in its page."""
    places: Tensor
    """int64 [T]: of each token among all that the walks put out, one walk after the other, page by
    page."""
    chains: Chains
    """Pages in order, each with its new tokens."""
    earlier: Earlier
    """What a convolution reads of the tokens before each."""

    def spread(self, tokens: Tensor) -> list[Tensor]:
        """[T, ...] of the new tokens to one [n, last - first, ...] per walk; zeros for others."""
        sizes = [len(walk.pages) * (walk.last - walk.first) for walk in self.walks]
        rows = tokens.new_zeros((sum(sizes), *tokens.shape[1:]))
        rows[self.places] = tokens
        return [
            torch.unflatten(part, 0, (len(walk.pages), -1))
            for walk, part in zip(self.walks, torch.split(rows, sizes), strict=True)
        ]

    def gather(self, parts: list[Tensor]) -> Tensor:
        """What `spread` has made, back to [T, ...]."""
        return torch.cat([part.flatten(0, 1) for part in parts])[self.places]


@dataclass(frozen=True, slots=True)
class Scans:
    """Plans a step like an attention backend does; the same for all layers of a group whose
    convolutions have as many taps."""

    taps: int = 1
    capture_blocker: ClassVar[str] = "a scan looks on the host for the pages that a step walks"

    def plan(self, batch: AttentionBatch, call: Scans) -> Walks:
        """Cut the step, once for all layers of a group."""
        cut = Cut(call.taps)
        segments = cut.plan(batch, cut)
        row, position = batch.flat()
        pieces = Pieces.of(row, position, batch.page_size)
        counts = np.diff(pieces.begin)
        order = np.lexsort((pieces.first, pieces.first + counts))
        pages = pages_of(batch, pieces.row[order], pieces.page[order])
        walks, places = _walks(pages, pieces.first[order], counts[order])
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
    """Walks of pages int64 [N] in order, and where the first new token of each page will be among
    all that the walks put out."""
    walks, places, total = list[Walk](), np.empty_like(begin), 0
    for start in range(0, len(begin), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        first, last = int(begin[some].min()), int((begin + count)[some].max())
        size = len(begin[some])
        places[some] = total + np.arange(size) * (last - first) + begin[some] - first
        walks.append(Walk(pages[some], first, last))
        total += size * (last - first)
    return walks, places
