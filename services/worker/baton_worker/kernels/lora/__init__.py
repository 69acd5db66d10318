"""Low-rank adapters (LoRA, arXiv:2106.09685): products of linear layers, embedding tables and
absorbed up-projections."""

from baton_worker.kernels.lora.products import (
    MAX_RANK,
    LoraKernel,
    LoraPair,
    PlainLora,
    TokenAdapters,
    lora_kernel,
)

__all__ = ["MAX_RANK", "LoraKernel", "LoraPair", "PlainLora", "TokenAdapters", "lora_kernel"]
