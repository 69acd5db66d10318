"""FlashInfer (Ye et al. 2025, arXiv:2501.01005): a kernel for decode rows, one for prompt chunks.

Rows with one new token use the decode wrapper, all others the prefill wrapper. All layers of a kind
share a wrapper's plan, which is kept until the step ends.

    step      row 0 (decode)    row 1 (chunk)    row 2 (decode)
    decode    row 0, row 2      prefill    row 1
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec, unknown
from baton_worker.attention.backend import fits
from baton_worker.attention.backends.flashinfer_graph import CapturedDecode
from baton_worker.attention.backends.flashinfer_plan import (
    HOST_PLANS,
    LIBRARY,
    PlannedWrapper,
    Rows,
    Wrappers,
    layer_features,
    plan_decode,
    uses_tensor_cores,
    workspace,
)
from baton_worker.attention.backends.gpu_packages import split
from baton_worker.kernels.page_layout import EVERY, Layout

_WIDTHS = (64, 128, 256)
_UNDERSTOOD = {"softcap"}
"""Features that its kernels support, see `unknown`."""


@dataclass(frozen=True, slots=True)
class _Part:
    planned: PlannedWrapper
    tokens: Tensor | None
    """int64, where the new tokens of its rows are; None: it has all."""


@dataclass(frozen=True, slots=True)
class _Plan:
    call: AttentionSpec
    parts: tuple[_Part, ...]


class FlashInferBackend:
    """`BatchDecodeWithPagedKVCacheWrapper` and `BatchPrefillWithPagedKVCacheWrapper`."""

    layouts = EVERY
    capture_blocker = None
    launch_blocker = HOST_PLANS

    def __init__(self) -> None:
        self._wrappers = functools.cache(_wrappers)

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what the installation, the GPU or the kernels do not support."""
        if reason := LIBRARY.refuses(call):
            return reason
        if reason := unknown(call, _UNDERSTOOD):
            return reason
        if call.head_dim not in _WIDTHS:
            return f"it has heads of {', '.join(map(str, _WIDTHS))} channels, not {call.head_dim}"
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan | CapturedDecode:
        """Plan the decode rows on one wrapper and all others on another; those of a captured step
        on one for graphs."""
        assert fits(batch, call)
        if batch.captured:
            return CapturedDecode(batch, call)
        counts = np.asarray(batch.query_lens)
        kinds = ((counts == 1, plan_decode), (counts > 1, _plan_prefill))
        return _Plan(
            call,
            tuple(
                self._part(batch, call, np.flatnonzero(chosen), prepare)
                for chosen, prepare in kinds
                if chosen.any()
            ),
        )

    def _part(
        self,
        batch: AttentionBatch,
        call: AttentionSpec,
        rows: npt.NDArray[np.int64],
        prepare: Callable[..., None],
    ) -> _Part:
        planned = self._wrappers(prepare is plan_decode, call).acquire()
        prepare(planned.wrapper, Rows.of(batch, rows), batch.page_size, call)
        if len(rows) == len(batch.query_lens):
            return _Part(planned, None)
        tokens = np.flatnonzero(np.isin(batch.flat()[0], rows))
        return _Part(
            planned, torch.from_numpy(tokens).to(batch.slot_mapping.device, non_blocking=True)
        )

    def forward(
        self,
        plan: _Plan | CapturedDecode,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        assert sinks is None and lse is None
        ordered = _ordered(pages, plan.call)
        if isinstance(plan, CapturedDecode):
            rows: Tensor = plan.wrapper.run(query, ordered)
            return rows.flatten(1)
        if (whole := plan.parts[0]).tokens is None:
            done: Tensor = whole.planned.wrapper.run(query, ordered)
            return done.flatten(1)
        out = query.new_empty(query.shape)
        for part in plan.parts:
            assert part.tokens is not None
            some = part.planned.wrapper.run(query.index_select(0, part.tokens), ordered)
            out.index_copy_(0, part.tokens, some)
        return out.flatten(1)


def _wrappers(decode: bool, call: AttentionSpec) -> Wrappers:
    """Wrappers for this kind of row and layer."""

    def make() -> Any:
        library, layout = import_module("flashinfer"), str(call.layout).upper()
        if not decode:
            return library.BatchPrefillWithPagedKVCacheWrapper(workspace(call.device), layout)
        return library.BatchDecodeWithPagedKVCacheWrapper(
            workspace(call.device), layout, use_tensor_cores=uses_tensor_cores(call)
        )

    return Wrappers(make)


def _plan_prefill(wrapper: Any, rows: Rows, page_size: int, call: AttentionSpec) -> None:
    wrapper.plan(
        *(rows.query_starts, rows.page_starts, rows.pages, rows.last(page_size)),
        *(call.num_heads, call.num_kv_heads, call.head_dim, page_size),
        causal=True,
        **layer_features(call),
    )


def _ordered(pages: Tensor, call: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Views of keys and values with axes in the order of the layout."""
    key, value = split(pages, call)
    if call.layout is Layout.NHD:
        return key, value
    return key.transpose(1, 2), value.transpose(1, 2)
