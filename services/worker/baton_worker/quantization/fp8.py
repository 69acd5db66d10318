"""FP8 checkpoints: one scale per tensor, row or block, and optionally input scales."""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.weight import ExpertStack
from baton_worker.quantization.collect import Format, Formats, Parts

_WEIGHT = frozenset({"weight", "weight_scale"})
_INPUT = "input_scale"
OF_PAGES = frozenset({"k_scale", "v_scale", "kv_scale"})
"""KV cache scales, which FP8 pages may replace by their own."""


def formats(settings: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `activation_scheme`, `weight_block_size`, and
    `activation_scale_ub` of FBGEMM. Unquantised modules are recognised by their dtype.

    Raises:
        ModelError: the settings are not supported.
    """
    options = vars(settings)
    scheme, number = options.get("activation_scheme") or "dynamic", options.get("fmt") or "e4m3"
    if number != "e4m3":
        raise ModelError(f"8-bit floats of the kind {number} cannot be read. Baton reads e4m3.")
    if scheme not in ("dynamic", "static"):
        raise ModelError(f"activation_scheme '{scheme}' is unknown. Known: dynamic, static.")
    block = options.get("weight_block_size")
    group = block[1] if block else None
    inputs = Inputs(group, most=options.get("activation_scale_ub"))
    form = stored(scheme == "static", inputs, block, OF_PAGES)
    return lambda module: form


def stored(
    is_static: bool, inputs: Inputs, block: list[int] | None, unread: Set[str] = frozenset()
) -> Format:
    """Weights with scales, and input scales if these are static."""
    read = partial(_read, inputs=inputs, block=block)
    if is_static:
        return Format(_WEIGHT | {_INPUT}, read, frozenset(unread))
    return Format(_WEIGHT, read, frozenset(unread) | {_INPUT})


def _read(parts: Parts, *, inputs: Inputs, block: list[int] | None) -> Fp8Weight | ExpertStack:
    """weight float8 [..., N, K], weight_scale a scalar, [N], [N, 1] or one per block, and optional
    scalar input_scale."""
    codes, scales = parts["weight"], parts["weight_scale"]
    if codes.dtype is not torch.float8_e4m3fn:
        raise ModelError(f"Weights of {codes.dtype} are no 8-bit floats that Baton reads.")
    if _INPUT in parts:
        inputs = Inputs(scale=parts[_INPUT].float().reshape(()))
    scales, size = _blocks(codes, scales.float(), block)
    if codes.ndim == 2:
        return Fp8Weight(codes, scales.contiguous(), size, inputs)
    each = scales.expand(*codes.shape[:-2], *scales.shape[-2:])

    def of(expert: int) -> Fp8Weight:
        return Fp8Weight(codes[expert], each[expert].contiguous(), size, inputs)

    return ExpertStack(codes.shape, of)


def _blocks(
    codes: Tensor, scales: Tensor, block: list[int] | None
) -> tuple[Tensor, tuple[int, int]]:
    """Scales [..., blocks, blocks] and the rows and columns of a block."""
    rows, columns = codes.shape[-2:]
    if scales.numel() == 1:
        return scales.reshape(1, 1), (rows, columns)
    if block is not None:
        size = (block[0], block[1])
        expected = tuple(
            -(-whole // part) for whole, part in zip((rows, columns), size, strict=True)
        )
        if tuple(scales.shape[-2:]) != expected:
            raise ValueError("there is not one scale for each block")
        return scales, size
    if scales.numel() != rows:
        raise ValueError("there is not one scale for each row")
    return scales.reshape(rows, 1), (1, columns)
