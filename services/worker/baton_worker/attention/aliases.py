"""Aliases: other servers' names of attention backends, mapped to ours or refused with a reason."""

from __future__ import annotations

from baton_worker.platform.flag_aliases import FlagAliases

ALIASES = {
    **dict.fromkeys(("triton_attn", "triton_mla"), "triton"),
    **dict.fromkeys(("fa2", "flash_attn_2", "flash_attention_2"), "flash_attn"),
    **dict.fromkeys(("fa3", "flash_attention_3", "flash_attn_mla"), "flash_attn_3"),
    "flash_attn_diffkv": "flash_attn_3",
    **dict.fromkeys(("flex_attention", "flex_attn"), "flex"),
    **dict.fromkeys(("sdpa", "torch_sdpa", "torch_native"), "grouped"),
    **{"cpu_attn": "cpu", "eager": "reference"},
}
"""Names that other servers have for what a backend here does, in small letters."""

_LATENT = "it is not built in; leave this at auto, where triton reads latents in place on a GPU"
_LIBRARY = "it is not built in; on a GPU triton reads pages in place, in prompts and in decoding"
_STATE = "layers that keep a state choose no backend of attention: leave this at auto"
_AMD = "backends for AMD do not apply here"
_OTHER = "backends for this hardware do not apply here"
ELSEWHERE = {
    **dict.fromkeys(("flashmla", "flashmla_sparse", "cutlass_mla", "trtllm_mla"), _LATENT),
    **dict.fromkeys(("fa4", "xformers", "trtllm_mha"), _LIBRARY),
    **dict.fromkeys(("linear_attn", "gdn_attn", "mamba1_attn", "mamba2_attn"), _STATE),
    **dict.fromkeys(("short_conv_attn",), _STATE),
    **dict.fromkeys(("rocm*", "aiter", "wave"), _AMD),
    **dict.fromkeys(("ascend", "intel_amx", "intel_xpu", "pallas"), _OTHER),
    "tree_attn": "trees of drafts are a mask, which triton, cpu, grouped, reference and flex know",
}
"""What to use instead of these, in half a sentence."""

NAMES = FlagAliases("--attention-backend", ALIASES, ELSEWHERE)
