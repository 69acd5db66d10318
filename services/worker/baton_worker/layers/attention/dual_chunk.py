"""Dual chunk attention: no relative distance exceeds the trained context.

A chunk has `chunk_len` tokens, here 4. Positions used by a query at position 10 (An et al. 2024,
arXiv:2402.17463):

    key            0  1  2  3 | 4  5  6  7 | 8  9 10
    its place      0  1  2  3   0  1  2  3   0  1  2
    the query is   at the place at 4 + 2,    at 2
                   of `far`     `chunk_size`
                                at most

Cached keys are rotated by their position within the chunk, so each part is ordinary attention to a
range of keys with a differently rotated query. `attention.lse_merge` merges the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.attention import AttentionBatch, AttentionSpec, Backend
from baton_worker.attention.lse_merge import Partial, merge
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.rope.rope import Angles, Rotary, rotate_

Column = npt.NDArray[np.int64]


class DualChunk(Attention):
    """Attention to the query's own chunk, the previous chunk and all earlier chunks."""

    fuses = False

    def __init__(
        self, settings: spec.DualChunkAttention, hidden: int, context: BuildContext
    ) -> None:
        _check(settings)
        super().__init__(settings, hidden, context)
        assert settings.rope is not None
        self.backend = Chunks(self.backend, settings, Rotary(settings.rope, context.device))
        # The step's angles are for positions in the sequence, these for positions within a chunk.
        self.rope = None

    def _place(self, heads: Tensor, step: ForwardContext, pages: Tensor) -> None:
        assert not step.texts, "chunks need a causal mask"
        first, last = self.call.num_heads, self.call.num_heads + self.call.num_kv_heads
        self._norm(heads)
        rotate_(heads[:, first:last], step.plans[self.call].keys)
        self._put(heads, step, pages)

    def _attend(self, query: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        plan: Plan = step.plans[self.call]
        return self.backend.forward(plan, query, pages)


@dataclass(frozen=True, slots=True)
class Part:
    """A range of each row's keys and the query angles used with it."""

    angles: Angles
    plan: object
    """The plan of the underlying backend."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one step."""

    keys: Angles
    """Angles of new keys."""
    parts: tuple[Part, ...]
    stretch: Tensor | None
    """[T, 1, 1] factor on the scores; None if it is 1."""


class Chunks:
    """A backend that attends to each part of the keys with another backend and merges the
    results."""

    def __init__(self, inner: Backend, settings: spec.DualChunkAttention, rotary: Rotary) -> None:
        self._inner, self._settings, self._rotary = inner, settings, rotary
        self.layouts = inner.layouts
        self.capture_blocker: str | None = "the chunks of a step are known on the host alone"
        self.launch_blocker = inner.launch_blocker

    def refuses(self, call: AttentionSpec) -> str | None:
        """The reason given by the underlying backend, if it refuses."""
        return self._inner.refuses(call)

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Plan:
        """Split rows at chunk boundaries and give each part its range of keys."""
        settings, size = self._settings, self._settings.chunk_len
        rows, (_, positions) = by_chunk(batch, size), batch.flat()
        begin = np.asarray(rows.num_computed, np.int64) // size * size
        before, place = (begin - size).clip(0), positions % size
        far = np.full_like(place, min(2 * size - 1, settings.chunk_size))
        near = self._angles(place, call)
        parts = [Part(near, self._ranged(rows, begin, begin + size, call))]
        if begin.any():
            angles = self._angles((place + size).clip(max=settings.chunk_size), call)
            parts.append(Part(angles, self._ranged(rows, before, begin, call)))
        if before.any():
            plan = self._ranged(rows, np.zeros_like(before), before, call)
            parts.append(Part(self._angles(far, call), plan))
        return Plan(near, tuple(parts), self._stretch(positions, call))

    def forward(
        self,
        plan: Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`; `query` is not rotated yet."""
        assert sinks is None
        if plan.stretch is not None:
            query = (query * plan.stretch).to(query.dtype)
        whole = merge([self._part(part, query, pages) for part in plan.parts])
        if lse is not None:
            lse.copy_(whole.lse)
        return whole.out

    def _part(self, part: Part, query: Tensor, pages: Tensor) -> Partial:
        turned = query.clone()
        rotate_(turned, part.angles)
        lse = query.new_empty(query.shape[:2], dtype=torch.float32)
        return Partial(self._inner.forward(part.plan, turned, pages, None, lse), lse)

    def _angles(self, places: Column, call: AttentionSpec) -> Angles:
        return self._rotary.angles(torch.from_numpy(places).to(call.device), call.dtype)

    def _ranged(
        self, rows: AttentionBatch, first: Column, end: Column, call: AttentionSpec
    ) -> object:
        ranges = tuple(zip(first.tolist(), end.tolist(), strict=True))
        return self._inner.plan(replace(rows, ranges=ranges), call)

    def _stretch(self, positions: Column, call: AttentionSpec) -> Tensor | None:
        """The temperature of a query depends on its own position only: a factor from the sequence
        length would invalidate cached KV and earlier outputs."""
        trained = self._settings.trained
        if not trained or positions.max(initial=0) < trained:
            return None
        factor = 0.1 * np.log((positions + 1) / trained).clip(0) + 1
        return torch.from_numpy(factor**2).to(call.device, torch.float32)[:, None, None]


def by_chunk(batch: AttentionBatch, size: int) -> AttentionBatch:
    """The same tokens in rows that do not cross a boundary between chunks of `size` positions.

    Args:
        batch: rows without trees or ranges.
    """
    assert batch.ranges is None and batch.trees is None
    starts, counts = (
        np.asarray(batch.num_computed, np.int64),
        np.asarray(batch.query_lens, np.int64),
    )
    pieces = (starts + counts - 1) // size - starts // size + 1
    if (pieces == 1).all():
        return batch
    row = np.repeat(np.arange(len(starts)), pieces)
    number = np.arange(len(row)) - (np.cumsum(pieces) - pieces)[row]
    first = np.maximum(starts[row], (starts[row] // size + number) * size)
    end = np.minimum((starts + counts)[row], (starts[row] // size + number + 1) * size)
    device = batch.slot_mapping.device
    return replace(
        batch,
        query_start_loc=_tensor(np.concatenate(([0], np.cumsum(end - first))), device),
        seq_lens=_tensor(end, device),
        block_table=batch.block_table.index_select(0, torch.from_numpy(row).to(device)),
        query_lens=tuple((end - first).tolist()),
        num_computed=tuple(first.tolist()),
        others=(),
    )


def _tensor(numbers: Column, device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32)).to(device)


def _check(settings: spec.DualChunkAttention) -> None:
    strange = {
        "a window": settings.mask.window,
        "chunked attention": settings.mask.chunk,
        "sinks": settings.sinks,
        "norms after the rope": settings.qk_norm is not None and settings.qk_norm.after_rope,
        "a temperature of its own": settings.scores.temperature,
        "values of another width": settings.values,
        "no rope": settings.rope is None or isinstance(settings.rope, spec.FourierRope),
    }
    if unsupported := [what for what, value in strange.items() if value]:
        raise ModelError(
            f"Dual chunk attention with {' and '.join(unsupported)} is not supported. Remove "
            "dual_chunk_attention_config from config.json to serve the plain model, and lower "
            "max_position_embeddings to what it was trained with."
        )
    if not 0 <= settings.local_size < settings.chunk_size:
        raise ModelError(
            f"dual_chunk_attention_config has a chunk_size of {settings.chunk_size} and a "
            f"local_size of {settings.local_size}; the second must be the smaller one."
        )
