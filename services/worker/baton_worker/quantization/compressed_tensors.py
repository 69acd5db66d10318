"""Checkpoints of compressed-tensors, as written by llm-compressor: one scheme per group of
modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.cpu.int8_linear import Int8Weight
from baton_worker.kernels.fp8 import Inputs
from baton_worker.kernels.gptq import GptqWeight, unpack
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.quantization import fp8
from baton_worker.quantization.collect import Format, Formats, Parts

_PACKED = (4, 8)
_OF_INPUTS = frozenset({"input_scale", "input_zero_point", "input_global_scale", "output_scale"})
_BY_ROW = ("channel", "token", "tensor")
"""Strategies with a scale per row of a matrix, or one for all."""
_EVERY = "Linear"
"""The target that is a module class; others are names, or regular expressions after `re:`."""


def formats(settings: SimpleNamespace) -> Formats:
    """The formats of a `quantization_config` with `config_groups`. Ignored modules are recognised
    by their unquantised tensors.

    Raises:
        ModelError: the settings are not supported.
    """
    _check(vars(settings))
    groups = vars(getattr(settings, "config_groups", None) or SimpleNamespace())
    schemes = [(group.targets, _format(group, settings)) for group in groups.values()]
    named = [
        (_pattern(target), form)
        for targets, form in schemes
        for target in targets
        if target != _EVERY
    ]
    every = next((form for targets, form in schemes if _EVERY in targets), None)

    def of(module: str) -> Format | None:
        return next((form for pattern, form in named if pattern.match(module)), every)

    return of


def _check(options: dict[str, Any]) -> None:
    sparsity = options.get("sparsity_config")
    if sparsity is not None and getattr(sparsity, "format", "dense") != "dense":
        raise ModelError("Sparse weights of compressed-tensors cannot be read, only dense ones.")
    transform = options.get("transform_config")
    if transform is not None and vars(transform).get("config_groups"):
        raise ModelError("compressed-tensors with transforms of weights or inputs cannot be run.")


def _pattern(target: str) -> re.Pattern[str]:
    """The pattern of a target's module names: a regular expression, or the end of a name."""
    if not target.startswith("re:"):
        return re.compile(rf"(.*\.)?{re.escape(target)}$")
    try:
        return re.compile(target.removeprefix("re:"))
    except re.error as error:
        raise ModelError(f"The target {target} of compressed-tensors is no expression.") from error


def _format(group: SimpleNamespace, settings: SimpleNamespace) -> Format:
    written = str(vars(group).get("format") or vars(settings).get("format"))
    weights, inputs = group.weights, vars(group).get("input_activations")
    number = f"{weights.type}{weights.num_bits}"
    method: dict[tuple[str, str], Callable[[Any, Any], Format]] = {
        **{("pack-quantized", f"int{bits}"): _packed for bits in _PACKED},
        **dict.fromkeys([("int-quantized", "int8"), ("naive-quantized", "int8")], _int8),
        **dict.fromkeys([("float-quantized", "float8"), ("naive-quantized", "float8")], _float8),
        ("nvfp4-pack-quantized", "float4"): _nvfp4,
    }
    if (written, number) not in method:
        known = ", ".join(f"{kind} {number}" for kind, number in method)
        raise ModelError(
            f"compressed-tensors of the format '{written}' with {number} weights cannot be read. "
            f"Baton reads: {known}."
        )
    return method[written, number](weights, inputs)


def _packed(weights: Any, inputs: Any) -> Format:
    parts = {"weight_packed", "weight_scale"}
    parts |= set() if weights.symmetric else {"weight_zero_point"}
    # Older versions write True for "group".
    by_index = vars(weights).get("actorder") in ("group", True)
    parts |= {"weight_g_idx"} if by_index else set()
    read = partial(_read_packed, bits=weights.num_bits)
    return Format(frozenset(parts), read, unread=_OF_INPUTS | {"weight_shape"})


def _read_packed(parts: Parts, *, bits: int) -> GptqWeight:
    """weight_packed int32 [N, K * bits / 32], weight_scale [N, G], optional weight_zero_point int32
    [N * bits / 32, G] and weight_g_idx [K]. Codes are stored as in GPTQ: signed numbers minus the
    lowest one."""
    words, scales = parts["weight_packed"], _columns(parts["weight_scale"])
    zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.int16)
    if "weight_zero_point" in parts:
        packed = parts["weight_zero_point"].T.contiguous().view(torch.uint8)
        zeros = unpack(packed, bits).to(torch.int16)
    depth = words.shape[1] * 32 // bits
    groups = parts.get("weight_g_idx")
    if groups is None:
        groups = torch.arange(depth, dtype=torch.int32) // (depth // len(scales))
    return GptqWeight(bits, words.T.contiguous(), scales, zeros, groups).checked()


def rounds_inputs(config: SimpleNamespace) -> bool:
    """Whether a checkpoint has weights whose inputs are to be rounded to 8-bit integers (w8a8)."""
    settings = getattr(config, "quantization_config", None)
    groups = vars(getattr(settings, "config_groups", None) or SimpleNamespace()).values()
    return any(_is_w8a8(group.weights, vars(group).get("input_activations")) for group in groups)


def _is_w8a8(weights: Any, inputs: Any) -> bool:
    """Whether weights have a scale per row or one, and inputs one per token or one, without zero
    points: then a product is one of integers."""
    if inputs is None or (weights.type, inputs.type) != ("int", "int"):
        return False
    fits = weights.num_bits == inputs.num_bits == 8 and vars(inputs).get("strategy") in _BY_ROW
    even = weights.symmetric and vars(inputs).get("symmetric", True)
    return bool(fits and even and vars(weights).get("strategy") in _BY_ROW)


def _int8(weights: Any, inputs: Any) -> Format:
    parts = {"weight", "weight_scale"} | (set() if weights.symmetric else {"weight_zero_point"})
    if not _is_w8a8(weights, inputs):
        return Format(frozenset(parts), _read_int8, unread=_OF_INPUTS)
    parts |= set() if inputs.dynamic else {"input_scale"}
    return Format(frozenset(parts), _read_w8a8, unread=_OF_INPUTS - parts)


def _read_w8a8(parts: Parts) -> Int8Weight:
    """As `_read_int8`; a static scale of inputs is one number."""
    scale = float(parts["input_scale"]) if "input_scale" in parts else None
    return Int8Weight(_read_int8(parts), scale)


def _read_int8(parts: Parts) -> GptqWeight:
    """weight int8 [N, K], weight_scale and optional weight_zero_point int8: a scalar or [N, G]."""
    codes = parts["weight"]
    scales = _columns(_by_row(parts["weight_scale"], len(codes)))
    zeros = torch.full(scales.shape, 128, dtype=torch.int16)
    if "weight_zero_point" in parts:
        zeros += _columns(_by_row(parts["weight_zero_point"], len(codes))).to(torch.int16)
    shifted = (codes.to(torch.int16) + 128).to(torch.uint8)
    return GptqWeight.of(shifted, 8, scales, zeros)


def _float8(weights: Any, inputs: Any) -> Format:
    block = vars(weights).get("block_structure")
    is_static = inputs is not None and inputs.dynamic is False
    strategy = vars(inputs).get("strategy") if inputs is not None else None
    group = inputs.group_size if strategy == "group" else None
    return fp8.stored(is_static, Inputs(group, per_tensor=strategy == "tensor"), block)


def _nvfp4(weights: Any, inputs: Any) -> Format:
    parts = frozenset({"weight_packed", "weight_scale", "weight_global_scale"})
    return Format(parts, _read_nvfp4, unread=_OF_INPUTS)


def _read_nvfp4(parts: Parts) -> Nvfp4Weight:
    """weight_packed uint8 [N, K / 2], weight_scale float8 [N, K / 16] and weight_global_scale, the
    factor by which the scales were multiplied."""
    factor = 1 / parts["weight_global_scale"].float().reshape(())
    return Nvfp4Weight(parts["weight_packed"], parts["weight_scale"], factor)


def _by_row(values: Tensor, rows: int) -> Tensor:
    """A scalar, [N] or [N, G] to [N, G]."""
    return values.reshape(1, 1).expand(rows, 1) if values.numel() == 1 else values.reshape(rows, -1)


def _columns(values: Tensor) -> Tensor:
    """[N, G] to [G, N]."""
    return values.T.contiguous()
