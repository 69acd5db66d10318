"""FlashInfer's decode kernel in captured steps: fixed buffers, planned on the host before each
replay."""

from __future__ import annotations

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
    uses_tensor_cores,
    workspace,
)
from baton_worker.attention.backends.gpu_packages import offsets


class CapturedDecode:
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
        self.wrapper = _wrapper(batch, call)
        self.refresh([start + 1 for start in batch.num_computed])

    def refresh(self, lengths: Sequence[int]) -> None:
        """See `backend.RefreshedPlan`."""
        batch, keys = self._batch, np.asarray(lengths, np.int64)
        used = -(-keys // batch.page_size)
        rows = Rows(
            torch.arange(len(keys) + 1, dtype=torch.int32),
            torch.from_numpy(offsets(used)),
            _page_list(batch, int(used.sum())),
            torch.from_numpy(keys.astype(np.int32)),
        )
        plan_decode(self.wrapper, rows, batch.page_size, self.call)


def _wrapper(batch: AttentionBatch, call: AttentionSpec) -> Any:
    rows, device = len(batch.query_lens), call.device
    pages = rows * batch.block_table.shape[1]
    indptr, indices, last = (
        torch.zeros(size, dtype=torch.int32, device=device) for size in (rows + 1, pages, rows)
    )
    return import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
        workspace(device),
        str(call.layout).upper(),
        use_cuda_graph=True,
        use_tensor_cores=uses_tensor_cores(call),
        paged_kv_indptr_buffer=indptr,
        paged_kv_indices_buffer=indices,
        paged_kv_last_page_len_buffer=last,
    )


def _page_list(batch: AttentionBatch, total: int) -> Tensor:
    """int32 [total]: the pages of all rows, one after the other. Made on the device, where block
    tables are, without a copy; the host knows how many there are."""
    table, used = batch.block_table, -(-batch.seq_lens // batch.page_size)
    numbers = torch.arange(len(used), device=table.device)
    owner = torch.repeat_interleave(numbers, used, output_size=total)
    before = used.cumsum(0) - used
    place = torch.arange(total, device=table.device) - before[owner]
    return table[owner, place]
