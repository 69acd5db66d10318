"""FlashAttention-2 (Dao 2023, arXiv:2307.08691) over pages, from the package `flash_attn`.

Its kernels read pages of a multiple of 256 tokens in place (`--worker.block-size 256`). Smaller
pages are first gathered, row after row.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec, unknown
from baton_worker.attention.backend import fits
from baton_worker.attention.backends.gpu_packages import (
    GpuPackage,
    lengths,
    offsets,
    ragged,
    split,
)
from baton_worker.kernels.page_layout import EVERY

_LIBRARY = GpuPackage("flash_attn", "`pip install flash-attn`", (8, 0))
_PAGE_TOKENS = 256
_MOST_CHANNELS = 256
_UNDERSTOOD = {"softcap", "slopes"}
"""Features that its kernels support, see `unknown`."""


@dataclass(frozen=True, slots=True)
class _Plan:
    batch: AttentionBatch
    call: AttentionSpec
    key_starts: Tensor
    """int32 [B + 1]"""
    longest: int
    """Most keys of a row."""
    slopes: Tensor | None
    tokens: tuple[Tensor, Tensor] | None
    """Page and offset of every key, int64 each, where pages are not read in place."""


class FlashAttnBackend:
    """`flash_attn_varlen_func` for all rows of a step."""

    layouts = EVERY
    capture_blocker = "FlashAttention-2 is told where keys begin by a tensor that each plan makes"
    launch_blocker = None

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what the installation, the GPU or the kernels do not support."""
        if reason := _LIBRARY.refuses(call):
            return reason
        if reason := unknown(call, _UNDERSTOOD):
            return reason
        if call.head_dim > _MOST_CHANNELS or call.head_dim % 8:
            return (
                f"it has heads of {_MOST_CHANNELS} channels at most, in eights, not {call.head_dim}"
            )
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan:
        """Offsets of each row's keys."""
        assert fits(batch, call)
        device, keys = batch.seq_lens.device, lengths(batch)
        slopes = call.slopes
        return _Plan(
            batch,
            call,
            torch.from_numpy(offsets(keys)).to(device),
            int(keys.max()),
            None if slopes is None else torch.tensor(slopes, dtype=torch.float32, device=device),
            None if batch.page_size % _PAGE_TOKENS == 0 else _tokens(batch),
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
        assert sinks is None and lse is None
        batch, call = plan.batch, plan.call
        key, value = split(pages, call)
        if plan.tokens is not None:
            key, value = key[plan.tokens], value[plan.tokens]
        out: Tensor = import_module("flash_attn").flash_attn_varlen_func(
            *(query, key, value),
            cu_seqlens_q=batch.query_start_loc,
            cu_seqlens_k=plan.key_starts,
            max_seqlen_q=max(batch.query_lens),
            max_seqlen_k=plan.longest,
            softmax_scale=call.scale,
            causal=True,
            window_size=(-1, -1) if call.window is None else (call.window - 1, 0),
            softcap=call.softcap or 0.0,
            alibi_slopes=plan.slopes,
            block_table=batch.block_table if plan.tokens is None else None,
        )
        return out.flatten(1)


def _tokens(batch: AttentionBatch) -> tuple[Tensor, Tensor]:
    """Page and offset of every key of every row, int64 [sum of lengths] each."""
    device = batch.block_table.device
    row, number = ragged(lengths(batch))
    place, offset = np.divmod(number, batch.page_size)
    at = (torch.from_numpy(x).to(device) for x in (row, place))
    return batch.block_table[tuple(at)].long(), torch.from_numpy(offset).to(device)
