"""TorchAO checkpoints in safetensors: tensors of a weight have names like `_weight_qdata`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.quantized_weights import BlockQuantized
from baton_worker.quantization.collect import Collected, Format, Formats, Parts

_CODES, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
_OF_INPUTS = frozenset({"_weight_act_quant_scale", "_weight_act_quant_zero_point"})


def formats(settings: SimpleNamespace) -> Formats:
    """The format of the config in `quant_type`.

    Raises:
        ModelError: the config's tensors are not supported, or differ by module.
    """
    quant_type = vars(settings).get("quant_type")
    inner = (
        vars(quant_type).get("default") if isinstance(quant_type, SimpleNamespace) else quant_type
    )
    name = str(vars(inner).get("_type")) if isinstance(inner, SimpleNamespace) else str(inner)
    if name not in _FORMATS:
        raise ModelError(
            f"TorchAO weights of {name} cannot be read. Baton reads, from safetensors: "
            f"{', '.join(_FORMATS)}."
        )
    form = _FORMATS[name]
    return lambda module: form


def _read_float8(parts: Parts) -> Fp8Weight:
    """Codes float8 [N, K]; scales [1, 1], [N, 1] or one per block."""
    codes, scales = parts[_CODES], parts[_SCALE].float()
    if codes.dtype is not torch.float8_e4m3fn:
        raise ModelError(f"Weights of {codes.dtype} are no 8-bit floats that Baton reads.")
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales.view(-1, scales.shape[-1])
    rows, columns = (whole // count for whole, count in zip(codes.shape, scales.shape, strict=True))
    return Fp8Weight(codes, scales.contiguous(), (rows, columns), Inputs())


def _read_int8(parts: Parts) -> Collected:
    """Codes int8 [N, K]; scales and zeros [N], [N, 1] or a scalar."""
    codes = parts[_CODES]
    if parts[_ZERO].any():
        return _read_intx(parts)
    scales = parts[_SCALE].float().reshape(-1, 1).expand(len(codes), 1)
    group = KINDS["int8_float"].group
    if codes.shape[1] % group:
        return codes * scales
    return BlockQuantized("int8_float", codes, scales.repeat(1, codes.shape[1] // group))


def _read_intx(parts: Parts) -> Collected:
    """Codes of up to 8 bits as int8 [N, K]; scales and zeros [N, G], or [N] where a row is one."""
    codes = parts[_CODES]
    scales = parts[_SCALE].reshape(len(codes), -1)
    zeros = parts[_ZERO].reshape(len(codes), -1).to(torch.int16)
    bits = 4 if int(codes.min()) >= -8 and int(codes.max()) < 8 else 8
    lowest = -(1 << bits - 1)
    shifted = (codes.to(torch.int16) - lowest).to(torch.uint8)
    return GptqWeight.of(shifted, bits, _columns(scales), _columns(zeros - lowest))


def _columns(values: Tensor) -> Tensor:
    """[N, G] to [G, N]."""
    return values.T.contiguous()


def _format(read: Any, *parts: str) -> Format:
    return Format(frozenset({_CODES, _SCALE, *parts}), read, _OF_INPUTS)


_FORMATS = {
    "Float8WeightOnlyConfig": _format(_read_float8),
    "Float8DynamicActivationFloat8WeightConfig": _format(_read_float8),
    "Int8WeightOnlyConfig": _format(_read_int8, _ZERO),
    "Int8DynamicActivationInt8WeightConfig": _format(_read_int8, _ZERO),
    "IntxWeightOnlyConfig": _format(_read_intx, _ZERO),
    "Int8DynamicActivationIntxWeightConfig": _format(_read_intx, _ZERO),
}
