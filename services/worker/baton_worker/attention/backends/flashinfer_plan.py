"""FlashInfer's plan inputs, and its wrappers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backends.gpu_packages import (
    GpuPackage,
    lengths,
    offsets,
    ragged,
)

LIBRARY = GpuPackage("flashinfer", "`pip install flashinfer-python`", (8, 0))
_WORKSPACE_BYTES = 128 << 20
_PLAIN_GROUP = 3
"""Up to so many heads that share a key head, products on tensor cores would be mostly padding. Its
kernels without them have no others but 4 and 8."""
HOST_PLANS = "FlashInfer plans a step in memory that the plan before it is copied from"
"""Why steps are not launched ahead."""


@functools.cache
def workspace(device: torch.device) -> Tensor:
    """Scratch memory for split-KV partial results. Shared by all wrappers, which run one after
    another."""
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PlannedWrapper:
    """A planned wrapper. It returns to its pool, to be planned again, when this object is
    dropped."""

    wrapper: Any


class Wrappers:
    """Pool of wrappers of one kind. Steps are planned in turn, so a few are enough.

    Args:
        make: creates a wrapper.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._free = make, list[Any]()

    def acquire(self) -> PlannedWrapper:
        """Return a wrapper that no plan uses."""
        planned = PlannedWrapper(self._free.pop() if self._free else self._make())
        weakref.finalize(planned, self._free.append, planned.wrapper).atexit = False
        return planned


@dataclass(frozen=True, slots=True)
class Rows:
    """The KV of some rows of a step in FlashInfer's form; plan inputs are on the host."""

    query_starts: Tensor
    """int32 [B + 1] on the host."""
    page_starts: Tensor
    """int32 [B + 1] on the host."""
    pages: Tensor
    """int32 [pages of all of them] on the device."""
    lengths: Tensor
    """int32 [B] on the host."""

    @classmethod
    def of(cls, batch: AttentionBatch, rows: npt.NDArray[np.int64]) -> Rows:
        """Plan inputs for these rows of a step."""
        keys, counts = lengths(batch)[rows], np.asarray(batch.query_lens)[rows]
        used, device = -(-keys // batch.page_size), batch.block_table.device
        owner, place = ragged(used)
        at = (torch.from_numpy(x).to(device, non_blocking=True) for x in (rows[owner], place))
        return cls(
            torch.from_numpy(offsets(counts)),
            torch.from_numpy(offsets(used)),
            batch.block_table[tuple(at)],
            torch.from_numpy(keys.astype(np.int32)),
        )

    def last(self, page_size: int) -> Tensor:
        """Tokens in the last page of each row, int32 [B]."""
        return (self.lengths - 1) % page_size + 1


def uses_tensor_cores(call: AttentionSpec) -> bool:
    """Whether decode rows of these layers run on tensor cores."""
    return call.group > _PLAIN_GROUP


def plan_decode(wrapper: Any, rows: Rows, page_size: int, call: AttentionSpec) -> None:
    """Plan rows of one new token each."""
    wrapper.plan(
        *(rows.page_starts, rows.pages, rows.last(page_size)),
        *(call.num_heads, call.num_kv_heads, call.head_dim, page_size),
        **layer_features(call),
    )


def plan_latents(wrapper: Any, rows: Rows, page_size: int, call: AttentionSpec) -> None:
    """Plan rows of any number of new tokens over latents."""
    wrapper.plan(
        qo_indptr=rows.query_starts,
        kv_indptr=rows.page_starts,
        kv_indices=rows.pages,
        kv_len_arr=rows.lengths,
        num_heads=call.num_heads,
        head_dim_ckv=call.width,
        head_dim_kpe=call.head_dim - call.width,
        page_size=page_size,
        causal=True,
        sm_scale=call.scale,
        q_data_type=call.dtype,
        kv_data_type=call.dtype,
    )


def layer_features(call: AttentionSpec) -> dict[str, Any]:
    """Layer parameters that both kinds of wrapper take."""
    return {
        "pos_encoding_mode": "NONE",
        "window_left": -1 if call.window is None else call.window - 1,
        "logits_soft_cap": call.softcap or 0.0,
        "sm_scale": call.scale,
        "q_data_type": call.dtype,
        "kv_data_type": call.dtype,
    }
