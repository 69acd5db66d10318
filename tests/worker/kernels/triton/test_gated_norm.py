"""Gated norms against their twin in torch."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.gated_norm import GatedNorm
from tests.fakes.random_weights import fill


@pytest.mark.row("F07.11")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_orders_are_those_of_the_twin(dtype: torch.dtype, device: torch.device) -> None:
    """With a gate that is a part of wider rows."""
    from baton_worker.kernels.triton.gated_norm import gated_norm

    generator, size = torch.Generator().manual_seed(0), 27
    x = torch.randn(5, size, generator=generator).to(device)
    gate = torch.randn(5, size + 9, generator=generator).to(device, dtype)[:, 4 : 4 + size]
    for gate_first, groups, shared in product((True, False), (1, 3), (True, False)):
        for activation in ("silu", "sigmoid"):
            settings = spec.GatedNorm(1e-2, groups, gate_first, shared, activation=activation)
            layer = GatedNorm(settings, size, "norm", BuildContext(device, dtype))
            fill(layer)
            how = {"groups": groups, "gate_first": gate_first, "silu": activation == "silu"}
            found = gated_norm(x, gate, layer.weight, settings.eps, **how)  # type: ignore[arg-type]
            near = 1e-5 if dtype is torch.float32 else 2**-7
            torch.testing.assert_close(found, layer(x, gate), rtol=near, atol=near)
