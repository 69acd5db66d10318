"""Decides which models run in bfloat16 on a CPU without bfloat16 instructions."""

from __future__ import annotations

from types import NoneType

from baton_worker import spec
from baton_worker.kernels import cpu

_OURS = {
    *(spec.Attention, spec.KVSharingSource, spec.KVSharingTarget, spec.SharedAttention),
    *(spec.LinearAttention, spec.SelectiveStateSpace),
    *(spec.DeltaNet, spec.Mamba, spec.ShortConv, spec.StateSpace),
    *(spec.Glu, spec.SharedGlu, spec.Mlp, spec.XieluMlp),
    *(spec.Moe, spec.ModalityMoe, NoneType),
}
"""Parts that use only packed products, or float32 anyway."""


def is_expanded(decoder: spec.Decoder) -> bool:
    """Whether our kernels compute all products of a text model.

    They expand bfloat16 in registers and accumulate in float32 on any CPU, at half the memory
    traffic of float32. Torch's own bfloat16 products are many times slower than float32 on a CPU
    without bfloat16 instructions.
    """
    parts = {type(part) for layer in decoder.layers for part in layer}
    text = not isinstance(decoder, spec.Encoder) and parts <= _OURS
    return text and all(cpu.library(name) is not None for name in ("linear", "attention"))
