"""The build context with what a checkpoint adds to the settings."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch

from baton_worker.checkpoint.bf16_expansion import is_expanded
from baton_worker.distributed.communicator import Communicator
from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.layers.build_context import BuildContext
from baton_worker.quantization.blocks import scheme
from baton_worker.quantization.methods import ROUNDS, method
from baton_worker.spec import Decoder
from baton_worker.spec.hf_config import has_kv_scales


def rounding(context: BuildContext, config: SimpleNamespace) -> BuildContext:
    """The context with the format of the checkpoint, if the settings round nothing. A setting that
    names a checkpoint format, fp8 or mxfp4, rounds floats only."""
    if context.quantization in ROUNDS and method(config) is not None:
        return replace(context, quantization="none")
    if context.quantization != "none":
        return context
    return replace(context, quantization=scheme(config))


def staging(config: SimpleNamespace) -> torch.device | None:
    """The host where weights are quantised: a GPU may have no room for all of them as floats."""
    return None if method(config) is None else torch.device("cpu")


def checkpoint_context(
    context: BuildContext,
    config: SimpleNamespace,
    spec: Decoder,
    narrow: torch.dtype | None,
    ranks: Communicator,
) -> BuildContext:
    """The context with what follows from the checkpoint."""
    dtype = narrow if narrow is not None and is_expanded(spec) else context.dtype
    scaled = has_kv_scales(config) and _has_scales(context.codes)
    return replace(context, dtype=dtype, scaled=scaled, peers=ranks, staging=staging(config))


def _has_scales(codes: KVCodes | None) -> bool:
    return codes is not None and codes.dtype is torch.float8_e4m3fn
