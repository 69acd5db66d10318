"""A kernel on inputs of a real layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from baton_worker.kernels.recurrent import delta
from baton_worker.kernels.recurrent import ssm_states as states

_MAMBA_2 = states.Shape(80, 1, 128, 64, key=5376 + 5120, value=5376)
"""Mamba-2 2.7B: the page row of a token has the inputs of its convolution first."""
_QWEN_3_NEXT = delta.Shape(8192, 8192 + 2048, 32, 16, 128, 128, channels=1)
"""Qwen3-Next 80B-A3B, in such rows."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shapes of the layers."""

    rows: int
    """Sequences that decode."""
    prompt: int
    """Tokens of a prompt."""
    context: int
    """Tokens behind which a row decodes."""
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    experts: int
    expert_size: int
    top_k: int
    page_size: int = 16
    group: int = 128
    """Channels of a weight that share a scale."""
    states: states.Shape = _MAMBA_2
    delta: delta.Shape = _QWEN_3_NEXT


REAL = Sizes(64, 2048, 1024, 32, 8, 128, 4096, 128256, 128, 768, 8)
"""Llama 3 8B, with the experts of Qwen3 30B-A3B; recurrent layers as above."""
TINY = Sizes(
    *(3, 20, 40, 4, 2, 16, 64, 300, 2, 32, 2, 4, 32),
    states.Shape(2, 1, 5, 7, key=14, value=0),
    delta.Shape(0, 5, 2, 1, 5, 7, channels=1),
)
"""For an interpreter."""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """A kernel on inputs of its own."""

    name: str
    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    """The same in float64; of a sampler the tokens."""
    nbytes: int
    """Bytes that must be read and written."""
    flops: int
    tolerance: float = 0.0
    """Greatest distance from the reference as a part of its largest number; 0: exactly equal."""
