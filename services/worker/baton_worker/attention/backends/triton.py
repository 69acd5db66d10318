"""Paged attention on a GPU in one launch for decode rows and prompt chunks, pages read in place.

Grouped heads, windows, chunks, soft caps, ALiBi, sinks, latents, pages of codes and both layouts.
The kernel is `kernels/triton/attention`; its twin in torch is `attention.reference`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec, unknown
from baton_worker.attention.backend import fits
from baton_worker.kernels import triton
from baton_worker.kernels.kv_codes import row_width
from baton_worker.kernels.page_layout import EVERY

if TYPE_CHECKING:
    from baton_worker.kernels.triton.attention.launch import Masks, Scores, Step

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_CHANNELS = 256
_MOST_LATENT_CHANNELS = 512
_UNDERSTOOD = {
    *("softcap", "slopes", "chunk", "sinks", "token_sinks"),
    *("codes", "value_dim", "partial", "tree", "spans", "latent", "most_keys"),
}
"""Features that its kernels support, see `unknown`."""


class _Plan(NamedTuple):
    step: Step
    scores: Scores
    masks: Masks


class TritonBackend:
    """One kernel for every kind of row; rows of few new tokens cut their keys into partitions."""

    layouts = EVERY
    capture_blocker = None
    launch_blocker = None

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: a token has the same bits whether it was decoded or is part of a prompt. Without
        it, a row has the same bits beside any others."""
        self._exact = exact

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what the device, the installation or the kernel's tiles do not support."""
        if reason := triton.refuses(call.device):
            return reason
        if call.device.type == "cpu" and call.dtype is torch.bfloat16:
            return "Triton's interpreter does not multiply bfloat16"
        if call.dtype not in _DTYPES:
            return f"it has no product for {call.dtype}"
        if reason := unknown(call, _UNDERSTOOD):
            return reason
        if self._exact and call.latent:
            return "--exact: the products of latents have no constant shape"
        return _too_much(call)

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan:
        """Choose the rows that are cut into partitions, and their number of partitions."""
        assert fits(batch, call)
        return _Plan(_step(batch, call, self._exact), self._scores(call), _masks(batch, call))

    def _scores(self, call: AttentionSpec) -> Scores:
        from baton_worker.kernels.triton.attention.launch import Scores

        has_planes = call.latent or call.value_dim is None
        return Scores(
            call.scale,
            call.softcap,
            call.codes.number if call.codes else 0,
            call.value_dim,
            None if has_planes else row_width(call.head_dim, call.codes),
            call.latent,
            self._exact,
        )

    def forward(
        self,
        plan: _Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        from baton_worker.kernels.triton.attention.launch import attend

        return attend(query, pages, *plan, sinks=sinks, lse=lse)


def _step(batch: AttentionBatch, call: AttentionSpec, exact: bool) -> Step:
    from baton_worker.kernels.triton.attention import launch

    most = launch.most_split_tokens(launch.heads_per_program(call.group, call.latent))
    counts, starts = np.asarray(batch.query_lens), np.asarray(batch.num_computed)
    short = counts <= most
    partitions = launch.partitions(int(((starts + counts) * short).max()), exact)
    # A single partition is the whole row: nothing to merge.
    split = short & (partitions > 1)
    return launch.Step(
        batch.block_table,
        batch.seq_lens,
        batch.query_start_loc,
        min(batch.query_lens),
        _longest(batch),
        _split_starts(batch.query_start_loc, most, partitions),
        _split_tokens(batch, split, most),
        partitions if split.any() else 1,
    )


def _masks(batch: AttentionBatch, call: AttentionSpec) -> Masks:
    from baton_worker.kernels.triton.attention.launch import Masks

    device, ranges = batch.seq_lens.device, batch.ranges
    return Masks(
        call.window,
        call.chunk,
        None if call.slopes is None else _slopes(call.slopes, device),
        None if ranges is None else torch.tensor(ranges, dtype=torch.int32, device=device),
        None if batch.trees is None else batch.trees.ancestors,
        None if batch.trees is None else batch.trees.depths,
        batch.last_keys,
    )


@functools.cache
def _slopes(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(slopes, device=device)


def _longest(batch: AttentionBatch) -> int:
    """Most new tokens of a row; of a captured step of any shape, all of its tokens."""
    longest = max(batch.query_lens)
    return sum(batch.query_lens) if batch.captured and longest > 1 else longest


def _split_tokens(batch: AttentionBatch, split: npt.NDArray[np.bool_], most: int) -> int:
    """Tokens of rows that are split, at most `most` of each; of a captured step, as many as there
    may be once its rows have other numbers of tokens."""
    counts = np.asarray(batch.query_lens)
    if not batch.captured or not split.any():
        return int((counts * split).sum())
    return int(min(counts.sum(), len(counts) * most))


def _split_starts(query_starts: Tensor, most: int, partitions: int) -> Tensor:
    """The index of each row's first token among the tokens of all split rows, int32 [B]; -1 for a
    row that is not split. Computed on the device, so that a step has no copy of its own for it."""
    counts = query_starts.diff()
    split = (counts <= most) & (partitions > 1)
    split_counts = counts * split
    return torch.where(split, split_counts.cumsum(0) - split_counts, -1).int()


def _too_much(call: AttentionSpec) -> str | None:
    """Refuses what does not fit a tile."""
    if not call.latent:
        widest, most = max(call.head_dim, call.width), _MOST_CHANNELS
        return f"a tile holds {most} channels of a head, not {widest}" if widest > most else None
    if call.codes:
        return f"it reads no {call.codes} latents"
    if call.width > (most := _MOST_LATENT_CHANNELS):
        return f"a tile holds {most} channels of a latent, not {call.width}"
    if (rest := call.head_dim - call.width) > _MOST_CHANNELS:
        return f"a tile holds {_MOST_CHANNELS} channels behind a latent, not {rest}"
    return None
