"""Detection of a checkpoint's quantisation method.

`METHODS` holds one row per method, `ALIASES` the names used elsewhere, and `REFUSED` the
unsupported methods with the reason.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.spec.hf_config import quantises_only_kv

if TYPE_CHECKING:
    from baton_worker.quantization.collect import Formats

METHODS = Registry(
    "quantisation",
    {
        "gptq": "baton_worker.quantization.gptq:formats",
        "marlin": "baton_worker.quantization.marlin:formats",
        "awq": "baton_worker.quantization.awq:formats",
        "fp8": "baton_worker.quantization.fp8:formats",
        "fbgemm_fp8": "baton_worker.quantization.fp8:formats",
        "compressed-tensors": "baton_worker.quantization.compressed_tensors:formats",
        "modelopt": "baton_worker.quantization.modelopt:formats",
        "mxfp4": "baton_worker.quantization.mxfp4:formats",
        "mxfp8": "baton_worker.quantization.mxfp8:formats",
        "bitsandbytes": "baton_worker.quantization.bitsandbytes:formats",
        "fp_quant": "baton_worker.quantization.fp_quant:formats",
        "quark": "baton_worker.quantization.quark:formats",
        "exl3": "baton_worker.quantization.exl3:formats",
        "torchao": "baton_worker.quantization.torchao:formats",
        "baton": "baton_worker.quantization.blocks:formats",
    },
)
ALIASES = {
    **dict.fromkeys(("auto_gptq", "gptq_marlin", "gptqmodel"), "gptq"),
    **dict.fromkeys(("auto_awq", "awq_marlin", "awq_triton", "cpu_awq"), "awq"),
    "ptpc_fp8": "fp8",
    **dict.fromkeys(("compressed_tensors", "sparseml"), "compressed-tensors"),
    **dict.fromkeys(("modelopt_fp8", "modelopt_fp4", "modelopt_mxfp8", "nvfp4"), "modelopt"),
    "petit_nvfp4": "modelopt",
    "gpt_oss_mxfp4": "mxfp4",
    **dict.fromkeys(("bitsandbytes_8bit", "bitsandbytes_4bit"), "bitsandbytes"),
}
ONLINE = ("experts_int8",)
"""Values of the setting `quantization` that a checkpoint of floats may ask for."""
ROUNDS = ("fp8", "mxfp4")
"""Methods of checkpoints that are values of the setting too: they round a checkpoint of floats."""
_INTEL = ("auto-round", "auto_round", "intel/auto-round", "inc")
"""Methods whose `packing_format` selects one of two layouts."""
_OTHER = "Use the unquantised checkpoint, or a GGUF file of the same model."
_ROUNDED = "It rounds weights while loading, as --worker.quantization int8 does here."
REFUSED = {
    **dict.fromkeys(("aqlm", "bitnet", "eetq", "exl2", "higgs", "hqq", "qqq"), _OTHER),
    **dict.fromkeys(("quanto", "spqr"), _OTHER),
    **dict.fromkeys(("vptq", "modelopt_mixed", "humming"), _OTHER),
    **dict.fromkeys(("deepseek_v4_fp8", "nvfp4_per_token", "ipex"), _OTHER),
    **dict.fromkeys(("gptq_marlin_24", "marlin-24"), "It is the layout of one kernel."),
    **dict.fromkeys(("online", "fp8_per_tensor", "fp8_per_block"), _ROUNDED),
    **dict.fromkeys(("fp8_per_channel", "int8_per_channel_weight_only"), _ROUNDED),
    **dict.fromkeys(("moe_wna16", "gguf"), "It is not a method of safetensors checkpoints."),
}


def method(config: SimpleNamespace) -> str | None:
    """The row of `METHODS` for a checkpoint; None if it holds floats.

    Raises:
        ModelError: the method is unknown or not supported.
    """
    settings = getattr(config, "quantization_config", None)
    if settings is None or quantises_only_kv(config):
        return None
    if not isinstance(settings, SimpleNamespace):
        raise ModelError("config.json: quantization_config must be an object with quant_method.")
    named = str(vars(settings).get("quant_method") or _unnamed(settings)).lower()
    if named in _INTEL:
        named = _of_intel(settings)
    if named in ONLINE:
        return None
    if named in METHODS:
        return named
    if named in ALIASES:
        return ALIASES[named]
    if named in REFUSED:
        raise ModelError(
            f"This checkpoint is quantised with {named}, which Baton cannot load. {REFUSED[named]}"
        )
    known = ", ".join(sorted((*METHODS.names(), *ALIASES, *ONLINE, *_INTEL)))
    raise ModelError(
        f"This checkpoint is quantised with {named}, a method that Baton does not know. "
        f"It loads: {known}. {_OTHER}"
    )


def formats(config: SimpleNamespace) -> Formats | None:
    """The storage formats of a checkpoint; None if it is not quantised.

    Raises:
        ModelError: the formats are not supported.
    """
    name = method(config)
    if name is None:
        return None
    read = METHODS.load(name)
    try:
        result: Formats = read(config.quantization_config)
    except AttributeError as error:
        raise ModelError(f"What this config says of {name} lacks a field: {error}.") from error
    except (TypeError, ValueError, LookupError) as error:
        raise ModelError(
            f"config.json: quantization_config cannot be read as one of {name}: {error}."
        ) from error
    return result


def _unnamed(settings: SimpleNamespace) -> str:
    """ModelOpt nests its settings and names itself only as the producer."""
    nested = vars(settings).get("quantization")
    return (
        "modelopt" if nested is not None or hasattr(settings, "quant_algo") else "an unnamed method"
    )


def _of_intel(settings: SimpleNamespace) -> str:
    packing = str(vars(settings).get("packing_format") or "auto_round:auto_gptq")
    kind = packing.rpartition(":")[2].removeprefix("auto_")
    if kind not in ("gptq", "awq"):
        raise ModelError(
            f"AutoRound weights packed as '{packing}' cannot be read. "
            "Use a checkpoint that is packed as auto_round:auto_gptq or auto_round:auto_awq."
        )
    return kind
