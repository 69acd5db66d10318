"""Checkpoints of AMD's Quark: 8-bit floats per tensor or row, and MXFP4."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError
from baton_worker.kernels.fp8 import Inputs
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.quantization import fp8
from baton_worker.quantization.collect import Format, Formats, Parts

_OF_OTHERS = frozenset({"input_scale", "output_scale", "input_zero_point", "weight_zero_point"})


def formats(settings: SimpleNamespace) -> Formats:
    """The format of `global_quant_config`. Modules in `exclude` are recognised by their dtype.

    Raises:
        ModelError: the scheme is not supported, or differs by layer.
    """
    options = vars(settings)
    layers = options.get("layer_quant_config")
    if layers is not None and vars(layers):
        raise ModelError("Quark weights whose scheme differs by layer cannot be read.")
    form = _format(options["global_quant_config"]) if "global_quant_config" in options else None
    if form is None:
        raise ModelError("What this config says of quark lacks global_quant_config.")
    return lambda module: form


def _format(scheme: Any) -> Format:
    weight, inputs = scheme.weight, vars(scheme).get("input_tensors")
    number = (weight.dtype, weight.qscheme)
    if number in (("fp8_e4m3", "per_tensor"), ("fp8_e4m3", "per_channel")):
        is_static = inputs is not None and not vars(inputs).get("is_dynamic", False)
        by_tensor = inputs is not None and inputs.qscheme == "per_tensor"
        form = fp8.stored(is_static, Inputs(per_tensor=by_tensor), None, fp8.OF_PAGES)
        return Format(form.parts, form.read, form.unread | (_OF_OTHERS - form.parts))
    if number == ("fp4", "per_group") and vars(weight).get("group_size") == 32:
        return Format(frozenset({"weight", "weight_scale"}), _read_mxfp4, _OF_OTHERS)
    raise ModelError(
        f"Quark weights of {weight.dtype} {weight.qscheme} cannot be read. "
        "Baton reads fp8_e4m3 per_tensor and per_channel, and fp4 per_group of 32."
    )


def _read_mxfp4(parts: Parts) -> Mxfp4Weight:
    """weight uint8 [N, K / 2], the first value in the low half; weight_scale uint8 [N, K / 32]."""
    scales = parts["weight_scale"]
    return Mxfp4Weight(parts["weight"].reshape(*scales.shape, 16), scales)
