"""Aliases: other servers' names of expert kernels, mapped to ours or refused with a reason."""

from __future__ import annotations

from baton_worker.platform.flag_aliases import FlagAliases

ALIASES = {
    **dict.fromkeys(("deep_gemm", "triton_kernel", "fused_moe"), "triton"),
    **{"batched": "padded", "grouped_mm": "grouped", "eager": "loop"},
}
"""Names that other servers have for what a kernel here does, in small letters. DeepGEMM's layout is
that of triton: rows in the order of their experts, padded to blocks, and each block's expert."""

_PRODUCTS = (
    "it is not built in; leave this at auto, where on a GPU triton multiplies the rows of all "
    "experts in one launch"
)
_ROUNDED = (
    "it is not built in; leave this at auto, where four and eight bits run packed: on a CPU "
    "(--quantization), and on a GPU those of a quantised checkpoint, by triton"
)
ELSEWHERE = {
    **dict.fromkeys(("cutlass", "flashinfer_cutlass", "flashinfer_cutedsl"), _PRODUCTS),
    **dict.fromkeys(("flashinfer_trtllm", "flashinfer_mxfp4"), _PRODUCTS),
    **dict.fromkeys(("marlin", "emulation"), _ROUNDED),
    "aiter": "kernels for AMD do not apply here",
}
"""What to use instead of these, in half a sentence."""

NAMES = FlagAliases("--moe-backend", ALIASES, ELSEWHERE)
