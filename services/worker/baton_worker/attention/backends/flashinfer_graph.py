"""FlashInfer's kernels in captured decode steps: fixed buffers, planned on the host before each
replay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backends.flashinfer_plan import (
    Rows,
    plan_decode,
    plan_latents,
    uses_tensor_cores,
    workspace,
)
from baton_worker.attention.backends.gpu_packages import offsets


class _Captured(ABC):
    """Plan of a captured step; see `backend.RefreshedPlan`. A wrapper for graphs has the page lists
    of its rows in buffers of its own, as long as they may become, and its kernels are launched for
    the number of rows alone.

    Args:
        batch: the rows, at their longest; its tensors have the contents of each step in turn.
        call: the layers that share the plan.
    """

    def __init__(self, batch: AttentionBatch, call: AttentionSpec) -> None:
        assert max(batch.query_lens) == 1, "a captured step decodes"
        self.call, self._batch = call, batch
        rows, device = len(batch.query_lens), call.device
        sizes = (rows + 1, rows * batch.block_table.shape[1], rows)
        buffers = [torch.zeros(size, dtype=torch.int32, device=device) for size in sizes]
        self.wrapper = self._wrapper(*buffers)
        self.refresh([start + 1 for start in batch.num_computed])

    @abstractmethod
    def _wrapper(self, starts: Tensor, pages: Tensor, of_rows: Tensor) -> Any:
        """A wrapper whose buffers are int32 [B + 1], [pages] and [B]."""

    @abstractmethod
    def _plan(self, rows: Rows) -> None:
        """Plan these rows."""

    def refresh(self, lengths: Sequence[int]) -> None:
        """See `backend.RefreshedPlan`."""
        batch, keys = self._batch, np.asarray(lengths, np.int64)
        used = -(-keys // batch.page_size)
        self._plan(
            Rows(
                torch.arange(len(keys) + 1, dtype=torch.int32),
                torch.from_numpy(offsets(used)),
                _page_list(batch, int(used.sum())),
                torch.from_numpy(keys.astype(np.int32)),
            )
        )


class CapturedDecode(_Captured):
    """Plans of layers with keys and values."""

    def _wrapper(self, starts: Tensor, pages: Tensor, of_rows: Tensor) -> Any:
        return import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
            workspace(self.call.device),
            str(self.call.layout).upper(),
            use_cuda_graph=True,
            use_tensor_cores=uses_tensor_cores(self.call),
            paged_kv_indptr_buffer=starts,
            paged_kv_indices_buffer=pages,
            paged_kv_last_page_len_buffer=of_rows,
        )

    def _plan(self, rows: Rows) -> None:
        plan_decode(self.wrapper, rows, self._batch.page_size, self.call)


class CapturedLatents(_Captured):
    """Plans of layers with latents (MLA)."""

    def _wrapper(self, starts: Tensor, pages: Tensor, of_rows: Tensor) -> Any:
        return import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper(
            workspace(self.call.device),
            use_cuda_graph=True,
            qo_indptr=torch.zeros_like(starts),
            kv_indptr=starts,
            kv_indices=pages,
            kv_len_arr=of_rows,
        )

    def _plan(self, rows: Rows) -> None:
        plan_latents(self.wrapper, rows, self._batch.page_size, self.call)


def _page_list(batch: AttentionBatch, total: int) -> Tensor:
    """int32 [total]: the pages of all rows, one after the other. Made on the device, where block
    tables are, without a copy; the host knows how many there are."""
    table, used = batch.block_table, -(-batch.seq_lens // batch.page_size)
    numbers = torch.arange(len(used), device=table.device)
    owner = torch.repeat_interleave(numbers, used, output_size=total)
    before = used.cumsum(0) - used
    place = torch.arange(total, device=table.device) - before[owner]
    return table[owner, place]
