"""FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) over pages of any size, for Hopper.

Latents are passed in two parts: the rotated channels as key; the others as value, and times `qv` as
the rest of the score.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec, unknown
from baton_worker.attention.backend import fits
from baton_worker.attention.backends.gpu_packages import GpuPackage, split
from baton_worker.kernels.page_layout import EVERY

_LIBRARY = GpuPackage(
    "flash_attn_interface",
    "`pip install` the folder hopper of flash-attention",
    (9, 0),
    "flash_attn_3.flash_attn_interface",
)
"""The module beside the package `flash_attn_3`, which has the kernels and may have the module."""
_FUNCTION = "flash_attn_with_kvcache"
_ARGUMENTS = frozenset(
    ("qv", "cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q", "softmax_scale")
) | {"causal", "window_size", "softcap"}
"""Early versions for Hopper had no pages and no `qv`."""
_MOST_CHANNELS = 256
_UNDERSTOOD = {"softcap", "value_dim", "latent"}
"""Features that its kernels support, see `unknown`."""


@dataclass(frozen=True, slots=True)
class _Plan:
    batch: AttentionBatch
    call: AttentionSpec


class FlashAttn3Backend:
    """`flash_attn_with_kvcache` for all rows of a step; new KV is already in the pages."""

    layouts = EVERY
    capture_blocker = "capturing FlashAttention-3 has not been tried"
    launch_blocker = None

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what the installation, the GPU or the kernels do not support."""
        if reason := _LIBRARY.refuses(call) or _LIBRARY.missing(_FUNCTION, _ARGUMENTS):
            return reason
        if reason := unknown(call, _UNDERSTOOD):
            return reason
        if call.head_dim % 8 or call.width % 8:
            return f"it has channels in eights, not {call.head_dim} and values of {call.width}"
        return _latents(call) if call.latent else _heads(call)

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan:
        """Nothing to prepare."""
        assert fits(batch, call)
        return _Plan(batch, call)

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
        (key, value), absorbed = split(pages, call), None
        if call.latent:
            query, absorbed = query[..., call.width :], query[..., : call.width]
            key = key[..., call.width :]
        function = getattr(import_module(_LIBRARY.found or _LIBRARY.module), _FUNCTION)
        out: Tensor = function(
            *(query, key, value),
            qv=absorbed,
            cache_seqlens=batch.seq_lens,
            page_table=batch.block_table,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=max(batch.query_lens),
            softmax_scale=call.scale,
            causal=True,
            window_size=(-1, -1) if call.window is None else (call.window - 1, 0),
            softcap=call.softcap or 0.0,
        )
        return out.flatten(1)


def _heads(call: AttentionSpec) -> str | None:
    """Refuses key and value widths without a kernel."""
    key, value = call.head_dim, call.width
    same = key == value <= _MOST_CHANNELS
    if same or (128 < key <= 192 and 96 < value <= 128) or (key <= 64 and value <= 512):
        return None
    return f"it has no kernel for keys of {key} and values of {value} channels"


def _latents(call: AttentionSpec) -> str | None:
    """Refuses latent widths without a kernel."""
    rest = call.head_dim - call.width
    if 256 <= call.width <= 512 and 0 < rest <= 64:
        return None
    return f"it has no kernel for latents of {call.width} channels and {rest} rotated ones"
