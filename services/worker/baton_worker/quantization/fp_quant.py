"""FP-Quant checkpoints (Egiazarian et al. 2025, arXiv:2509.23202): MXFP4 or NVFP4 of weights that
were rotated, with the rotation beside them.

Inputs stay as they are: they are rotated, and not rounded to four bits.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.kernels.rotated_linear import RotatedWeight, rotate
from baton_worker.quantization.collect import Format, Formats, Parts

_MATRIX = "forward_hadamard_matrix"
_UNREAD = frozenset({"act_global_scale", "backward_hadamard_matrix"})
_BLOCKS = {"mxfp4": 32, "nvfp4": 16}


def formats(settings: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `forward_dtype`, `pseudoquantization` and
    `store_master_weights`. Modules that were left out are recognised by their dtype.

    Raises:
        ModelError: the settings are not supported.
    """
    options = vars(settings)
    kind = str(options.get("forward_dtype") or "mxfp4")
    if kind not in _BLOCKS:
        raise ModelError(f"FP-Quant weights in {kind} cannot be read, only in mxfp4 and nvfp4.")
    if options.get("store_master_weights"):
        raise ModelError(
            "This FP-Quant checkpoint holds the weights of a training run ('store_master_weights'),"
            " which are rounded in every step. Save it without them."
        )
    if options.get("pseudoquantization"):
        parts = frozenset({"dqweight", _MATRIX})
        form = Format(parts, _read_floats, _UNREAD | {"weight_global_scale"})
    else:
        stored = frozenset({"qweight", "scales", "weight_global_scale", _MATRIX})
        form = Format(stored, partial(_read, kind), _UNREAD)
    return lambda module: form


def _read_floats(parts: Parts) -> Tensor:
    """dqweight [N, K]: what the codes of a rotated weight stand for."""
    return rotate(parts["dqweight"].float(), parts[_MATRIX].float().T)


def _read(kind: str, parts: Parts) -> RotatedWeight:
    """qweight uint8 [N, K / 2]; scales uint8, at least [N, K / block], since kernels pad them;
    weight_global_scale [1], by which the weight is divided."""
    codes, block = parts["qweight"], _BLOCKS[kind]
    rows, columns = codes.shape[0], 2 * codes.shape[1]
    scales = parts["scales"].view(torch.uint8)[:rows, : columns // block].contiguous()
    factor = 1 / parts["weight_global_scale"].float().reshape(())
    matrix = parts[_MATRIX].float()
    if columns % len(matrix) or scales.shape != (rows, columns // block):
        raise ValueError("rows are not whole groups")
    if kind == "nvfp4":
        inner = Nvfp4Weight(codes, scales.view(torch.float8_e4m3fn), factor)
        return RotatedWeight(inner, matrix)
    return RotatedWeight(
        Mxfp4Weight(codes.view(rows, -1, block // 2), scales), matrix, float(factor)
    )
