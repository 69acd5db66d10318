"""The gated norm in both orders against its formula."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.gated_norm import GatedNorm
from tests.fakes.random_weights import fill

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F07.11")]


def part_by_part(x: Tensor, gate: Tensor, weight: Tensor, settings: spec.GatedNorm) -> Tensor:
    opened = (1 if settings.activation == "sigmoid" else gate) / (1 + (-gate).exp())
    if settings.gate_first:
        x = x * opened
    size = x.shape[1] // settings.groups
    parts = [x[:, at : at + size] for at in range(0, x.shape[1], size)]
    normed = [part / (part.square().mean(1, keepdim=True) + settings.eps).sqrt() for part in parts]
    if settings.shared:
        normed = [part * weight for part in normed]
    whole = torch.cat(normed, 1) * (1 if settings.shared else weight)
    return whole if settings.gate_first else whole * opened


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("fused", [True, False])
def test_gate_and_norm_in_either_order(
    context: BuildContext, gate_first: bool, groups: int, shared: bool, activation: str, fused: bool
) -> None:
    settings = spec.GatedNorm(1e-2, groups, gate_first, shared, activation)
    layer = GatedNorm(settings, 12, "norm", context)
    weight = fill(layer)["norm.weight"]
    assert len(weight) == (12 // groups if shared else 12)
    if fused:
        layer.process_weights_after_loading()
    x, gate = torch.randn(5, 12), torch.randn(5, 20)[:, 3:15]
    torch.testing.assert_close(layer(x, gate), part_by_part(x, gate, weight, settings))


def test_sums_are_in_float32_and_the_result_is_as_the_gate(context: BuildContext) -> None:
    layer = GatedNorm(spec.GatedNorm(1e-6), 64, "norm", replace(context, dtype=torch.bfloat16))
    weight = fill(layer)["norm.weight"].float()
    x, gate = torch.randn(3, 64), torch.randn(3, 64, dtype=torch.bfloat16)
    exact = F.rms_norm(x * F.silu(gate.float()), (64,), weight, 1e-6)
    assert torch.equal(layer(x, gate), exact.to(torch.bfloat16))
    layer.process_weights_after_loading()
    torch.testing.assert_close(layer(x, gate), exact.to(torch.bfloat16), rtol=2**-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_in_every_batch(context: BuildContext, dtype: torch.dtype) -> None:
    layer = GatedNorm(spec.GatedNorm(1e-6, 3), 300, "norm", replace(context, dtype=dtype))
    fill(layer)
    layer.process_weights_after_loading()
    x, gate = torch.randn(300, 300), torch.randn(300, 300).to(dtype)
    whole = layer(x, gate)
    assert all(torch.equal(layer(x[i : i + 1], gate[i : i + 1])[0], whole[i]) for i in (0, 7, 299))
