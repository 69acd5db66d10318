"""Checkpoints of AWQ (Lin et al. 2023, arXiv:2306.00978), in the layout of its GEMM kernel."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.gptq import GptqWeight, unpack
from baton_worker.quantization.collect import Format, Formats, Parts

_BITS = 4
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word, lowest first, that holds each of its eight columns: words hold the columns
0, 2, 4, 6, 1, 3, 5, 7."""


def formats(settings: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `bits`, `version` and `zero_point`.

    Raises:
        ModelError: the settings are not supported.
    """
    options = vars(settings)
    bits = options.get("bits", options.get("w_bit"))
    version = str(options.get("version") or options.get("format") or "gemm").lower()
    if bits != _BITS:
        raise ModelError(f"AWQ weights of {bits} bits cannot be read. Baton reads 4 bits.")
    if version != "gemm":
        raise ModelError(
            f"AWQ weights in the layout '{version}' cannot be read. "
            "Use a checkpoint whose version is 'gemm'."
        )
    if not options.get("zero_point", True):
        raise ModelError("AWQ weights without zero points cannot be read.")
    form = Format(frozenset({"qweight", "qzeros", "scales"}), read)
    return lambda module: form


def read(parts: Parts) -> GptqWeight:
    """qweight int32 [K, N / 8], qzeros int32 [G, N / 8] and scales [G, N]."""
    codes, zeros = _columns(parts["qweight"]), _columns(parts["qzeros"])
    return GptqWeight.of(codes.T.contiguous(), _BITS, parts["scales"], zeros.to(torch.int16))


def _columns(words: Tensor) -> Tensor:
    """int32 [rows, N / 8] to uint8 [rows, N]."""
    nibbles = unpack(words.contiguous().view(torch.uint8), _BITS)
    return torch.unflatten(nibbles, -1, (-1, 8))[..., _PLACES].flatten(-2)
