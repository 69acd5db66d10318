"""What a checkpoint adds to the settings."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from baton_worker.checkpoint.checkpoint_context import rounding, staging
from baton_worker.layers.build_context import BuildContext


def test_a_checkpoint_that_is_quantised_is_not_quantised_again() -> None:
    floats = SimpleNamespace()
    stored = SimpleNamespace(quantization_config=SimpleNamespace(quant_method="fp8"))
    context = BuildContext(torch.device("cpu"), torch.float32, quantization="fp8")
    assert rounding(context, floats).quantization == "fp8"
    assert rounding(context, stored).quantization == "none"
    assert staging(floats) is None and staging(stored) == torch.device("cpu")
