"""FlashInfer over latents: `BatchMLAPagedAttentionWrapper`, for decode rows and prompt chunks."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec, unknown
from baton_worker.attention.backend import fits
from baton_worker.attention.backends.flashinfer_graph import CapturedLatents
from baton_worker.attention.backends.flashinfer_plan import (
    HOST_PLANS,
    LIBRARY,
    PlannedWrapper,
    Rows,
    Wrappers,
    plan_latents,
    workspace,
)
from baton_worker.kernels.page_layout import EVERY

_WIDTHS = (512, 64)
_UNDERSTOOD = {"latent", "value_dim"}
"""Features that its kernels support, see `unknown`."""


@dataclass(frozen=True, slots=True)
class _Plan:
    call: AttentionSpec
    planned: PlannedWrapper


class FlashInferMlaBackend:
    """One wrapper for all rows of a step; layers of a kind share its plan."""

    layouts = EVERY
    capture_blocker = None
    launch_blocker = HOST_PLANS

    def __init__(self) -> None:
        self._wrappers = functools.cache(_wrappers)

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what the installation, the GPU or the kernels do not support."""
        if reason := LIBRARY.refuses(call):
            return reason
        if not call.latent:
            return "it serves latent attention only"
        if reason := unknown(call, _UNDERSTOOD):
            return reason
        if call.window is not None:
            return "it has no windows"
        if (widths := (call.width, call.head_dim - call.width)) != _WIDTHS:
            return "it has latents of {} channels and {} rotated ones, not {} and {}".format(
                *_WIDTHS, *widths
            )
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan | CapturedLatents:
        """Plan all rows on one wrapper; those of a captured step on one for graphs."""
        assert fits(batch, call)
        if batch.captured:
            return CapturedLatents(batch, call)
        rows = Rows.of(batch, np.arange(len(batch.query_lens)))
        planned = self._wrappers(call).acquire()
        plan_latents(planned.wrapper, rows, batch.page_size, call)
        return _Plan(call, planned)

    def forward(
        self,
        plan: _Plan | CapturedLatents,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        assert sinks is None and lse is None
        width, latents = plan.call.width, pages[:, :, 0, 0]
        wrapper = plan.wrapper if isinstance(plan, CapturedLatents) else plan.planned.wrapper
        out: Tensor = wrapper.run(
            q_nope=query[..., :width],
            q_pe=query[..., width:],
            ckv_cache=latents[..., :width],
            kpe_cache=latents[..., width:],
        )
        return out.flatten(1)


def _wrappers(call: AttentionSpec) -> Wrappers:
    """Wrappers for this kind of layer."""
    device = call.device
    return Wrappers(
        lambda: import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper(workspace(device))
    )
