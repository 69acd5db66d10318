"""FP8 and NVFP4 checkpoints of NVIDIA's ModelOpt."""

from __future__ import annotations

from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.kernels.fp8 import Inputs
from baton_worker.kernels.nvfp4 import Nvfp4Weight
from baton_worker.quantization import fp8, mxfp8
from baton_worker.quantization.collect import Collected, Format, Formats, Parts

_BLOCK = 128


_WEIGHT = frozenset({"weight", "weight_scale"})


def formats(settings: SimpleNamespace) -> Formats:
    """The format in `quant_algo`, at the top level or in `quantization`.

    Raises:
        ModelError: the format is not supported.
    """
    inner = vars(settings).get("quantization") or settings
    algorithm = str(vars(inner).get("quant_algo")).upper()
    by_algorithm = {
        "FP8": fp8.stored(True, Inputs(), None, fp8.OF_PAGES),
        "FP8_PER_CHANNEL_PER_TOKEN": fp8.stored(False, Inputs(), None, fp8.OF_PAGES),
        "FP8_PB_WO": Format(_WEIGHT, _read_per_block, fp8.OF_PAGES),
        "MXFP8": mxfp8.STORED,
        "NVFP4": Format(
            frozenset({"weight", "weight_scale", "weight_scale_2"}),
            _read_nvfp4,
            unread=fp8.OF_PAGES | {"input_scale"},
        ),
    }
    if algorithm not in by_algorithm:
        raise ModelError(
            f"ModelOpt's {algorithm} cannot be read. Baton reads: {', '.join(by_algorithm)}."
        )
    return lambda module: by_algorithm[algorithm]


def _read_per_block(parts: Parts) -> Collected:
    """weight float8 [N, K], weight_scale one per block of 128 x 128, [N / 128, K / 128] with or
    without axes of 1 between."""
    scales = parts["weight_scale"].squeeze()
    blocks = [-(-whole // _BLOCK) for whole in parts["weight"].shape]
    form = fp8.stored(False, Inputs(), [_BLOCK, _BLOCK])
    return form.read({**parts, "weight_scale": scales.reshape(blocks)})


def _read_nvfp4(parts: Parts) -> Nvfp4Weight:
    """weight uint8 [N, K / 2], weight_scale float8 [N, K / 16] and weight_scale_2, the scale of the
    scales."""
    factor = parts["weight_scale_2"].float().reshape(())
    return Nvfp4Weight(parts["weight"], parts["weight_scale"], factor)
