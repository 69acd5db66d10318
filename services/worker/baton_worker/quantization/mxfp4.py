"""MXFP4 checkpoints, as gpt-oss has them: see `kernels.mxfp4`."""

from __future__ import annotations

from types import SimpleNamespace

from baton_worker.quantization.collect import Formats


def formats(settings: SimpleNamespace) -> Formats:
    """No module has a format: the spec lists the stacked expert tensors and their scales."""
    return lambda module: None
