"""Attention backends in order of preference; each layer takes the first that does not refuse."""

from __future__ import annotations

from baton.registry import Registry
from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backend import Backend

BACKENDS = Registry(
    "attention",
    {
        "cpu": "baton_worker.attention.backends.cpu:CpuBackend",
        "triton": "baton_worker.attention.backends.triton:TritonBackend",
        "flash_attn_3": "baton_worker.attention.backends.flash_attn_3:FlashAttn3Backend",
        "flash_attn": "baton_worker.attention.backends.flash_attn:FlashAttnBackend",
        "flashinfer": "baton_worker.attention.backends.flashinfer:FlashInferBackend",
        "flashinfer_mla": "baton_worker.attention.backends.flashinfer_mla:FlashInferMlaBackend",
        "grouped": "baton_worker.attention.backends.grouped:GroupedBackend",
        "reference": "baton_worker.attention.backends.reference:ReferenceBackend",
        "flex": "baton_worker.attention.backends.flex:FlexBackend",
    },
)

__all__ = ["BACKENDS", "AttentionBatch", "AttentionSpec", "Backend"]
