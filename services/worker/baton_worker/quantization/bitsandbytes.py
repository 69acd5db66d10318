"""bitsandbytes checkpoints: NF4 and FP4, nested or not, and LLM.int8.

Four bits (Dettmers et al. 2023, arXiv:2305.14314): values in blocks of the flattened weight, each
divided by its largest one ("absmax"). These are stored as float32, or "nested" as bytes that index
a map, in blocks of their own with a scale and a common offset.

LLM.int8 (Dettmers et al. 2022, arXiv:2208.07339) stores bytes and the largest value of each row. It
rounds inputs too, apart from outliers; inputs are not rounded here, so there are no outliers.
"""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import BlockQuantized
from baton_worker.quantization.collect import Collected, Format, Formats, Parts

_STATE = "weight.quant_state.bitsandbytes__"
_LARGEST = {"nf4": 1.0, "fp4": 12.0}
"""By type: the largest entry of our table, which stands for 1."""
_NESTED = frozenset({"weight.nested_absmax", "weight.nested_quant_map"})


def formats(settings: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `load_in_8bit`, or `bnb_4bit_quant_type` and
    `bnb_4bit_use_double_quant`. Modules that were skipped are recognised by their dtype.

    Raises:
        ModelError: the type of four bits is unknown.
    """
    options = vars(settings)
    if options.get("load_in_8bit") or options.get("_load_in_8bit"):
        eight = Format(frozenset({"weight", "SCB"}), _read_int8, frozenset({"weight_format"}))
        return lambda module: eight
    kind = options.get("bnb_4bit_quant_type", "fp4")
    if kind not in _LARGEST:
        raise ModelError(f"bitsandbytes weights of the type {kind} cannot be read, only nf4, fp4.")
    parts = {"weight", "weight.absmax", _STATE + kind}
    parts |= _NESTED if options.get("bnb_4bit_use_double_quant") else set()
    four = Format(frozenset(parts), partial(_read_4bit, kind), frozenset({"weight.quant_map"}))
    return lambda module: four


def _read_int8(parts: Parts) -> Collected:
    """weight int8 [N, K], SCB float32 [N]."""
    codes, scales = parts["weight"], parts["SCB"].float().reshape(-1, 1) / 127
    group = KINDS["int8_float"].group
    if codes.shape[1] % group:
        return codes * scales
    return BlockQuantized("int8_float", codes, scales.repeat(1, codes.shape[1] // group))


def _read_4bit(kind: str, parts: Parts) -> Collected:
    """weight uint8 [N * K / 2, 1], the first of two values in the upper half of a byte."""
    state = json.loads(bytes(parts[_STATE + kind].tolist()))
    rows, columns = state["shape"]
    packed = parts["weight"].flatten()
    codes = torch.stack((packed >> 4, packed & 15), -1).view(torch.int8).flatten()
    scales = _absmax(parts, state) / _LARGEST[kind]
    form, block = KINDS[kind], int(state["blocksize"])
    if columns % form.group == 0 and block % form.group == 0:
        runs = scales.repeat_interleave(block // form.group)[: rows * columns // form.group]
        return BlockQuantized(kind, codes.view(rows, columns), runs.view(rows, -1).contiguous())
    wide = scales.repeat_interleave(block)[: rows * columns]
    return (form.numbers(codes) * wide).view(rows, columns)


def _absmax(parts: Parts, state: dict[str, Any]) -> Tensor:
    """The largest value of each block, float32."""
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return absmax.float()
    outer = parts["weight.nested_absmax"].repeat_interleave(int(state["nested_blocksize"]))
    inner = parts["weight.nested_quant_map"][absmax.int()]
    return inner * outer[: len(absmax)] + float(state["nested_offset"])
