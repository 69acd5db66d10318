"""Which models run in bfloat16 on a CPU that has no instruction for it."""

from __future__ import annotations

from types import NoneType

from baton_worker import spec
from baton_worker.kernels import cpu

_OURS = {
    *(spec.Attention, spec.KVSharingSource, spec.KVSharingTarget, spec.LinearAttention),
    *(spec.DeltaNet, spec.Mamba, spec.ShortConv, spec.StateSpace),
    *(spec.Glu, spec.Mlp, spec.Moe, NoneType),
}
"""Parts whose products are all packed ones, or in float32 anyway."""


def is_expanded(decoder: spec.Decoder) -> bool:
    """Whether our kernels compute all products of a body of text.

    They expand bfloat16 in registers and sum in float32 on any CPU, and read half of the bytes of
    float32. Torch's own products of bfloat16 take many times as long as those of float32 where
    the CPU does not multiply it.
    """
    parts = {type(part) for layer in decoder.layers for part in layer}
    text = not isinstance(decoder, spec.Encoder) and parts <= _OURS
    return text and all(cpu.library(name) is not None for name in ("linear", "attention"))
