"""EXL3 checkpoints of ExLlamaV3: trellis-coded weights of 1 to 8 bits.

What they mean is in `kernels.cpu.trellis_weight`. On a GPU layers get floats, with a warning in the
log.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from types import SimpleNamespace

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.cpu.trellis_weight import BLOCK, CODEBOOKS, TILE, TrellisWeight
from baton_worker.quantization.collect import Format, Formats, Parts

_BITS = range(1, 9)


def formats(settings: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `codebook`, which old checkpoints do not name. Bits
    are seen from each tensor.

    Raises:
        ModelError: the codebook is unknown.
    """
    codebook = vars(settings).get("codebook") or "3inst"
    if codebook not in CODEBOOKS:
        known = ", ".join(CODEBOOKS)
        raise ModelError(f"EXL3's codebook {codebook} cannot be read. Baton reads: {known}.")
    marker = set() if codebook == "3inst" else {codebook}
    spellings = [
        frozenset({"trellis", left, right, *marker})
        for left, right in product(("suh", "su"), ("svh", "sv"))
    ]
    form = Format(spellings[0], partial(_read, codebook), others=tuple(spellings[1:]))
    return lambda module: form


def _read(codebook: str, parts: Parts) -> TrellisWeight:
    """trellis int16 [K / 16, N / 16, 16 * bits]; suh float16 [K] or su, the bits of signs, int16
    [K / 16]; svh and sv the same of N."""
    trellis = parts["trellis"]
    left = parts["suh"] if "suh" in parts else _signs(parts["su"])
    right = parts["svh"] if "svh" in parts else _signs(parts["sv"])
    deep, wide, size = trellis.shape
    if trellis.dtype is not torch.int16 or size % TILE or size // TILE not in _BITS:
        raise ValueError(f"a tile of {size} words is none of 1 to 8 bits")
    if left.shape != (deep * TILE,) or right.shape != (wide * TILE,):
        raise ValueError("the scales are not those of the trellis")
    if len(left) % BLOCK or len(right) % BLOCK:
        raise ValueError(f"rows and columns are not multiples of {BLOCK}")
    return TrellisWeight(trellis, left, right, codebook, torch.arange(len(right)))


def _signs(words: Tensor) -> Tensor:
    """int16 [n / 16] to float16 [n]: a bit that is set, the lowest first, stands for -1."""
    bits = words.int()[:, None] >> torch.arange(TILE) & 1
    return (1 - 2 * bits).flatten().to(torch.float16)
