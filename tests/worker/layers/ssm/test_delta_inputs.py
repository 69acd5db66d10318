"""Input projections of a delta net, per token and role."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.ssm.delta_inputs import Decays, Inputs, inputs
from tests.fakes.random_weights import fill

pytestmark = pytest.mark.usefixtures("seeded")
NORM = spec.GatedNorm(1e-6, 4, gate_first=False, shared=True)
GATED = spec.DeltaNet(2, 4, 6, 8, 4, NORM)
KIMI = spec.DeltaNet(4, 4, 8, 8, 3, NORM, rank=5)
ROLES = ("query", "key", "value")


@pytest.mark.row("F07.14")
def test_every_projection_of_a_gated_delta_net_has_a_name_of_its_own(context: BuildContext) -> None:
    layer = inputs(GATED, 10, context)
    w, x = fill(layer), torch.randn(7, 10)
    found: Inputs = layer(x)
    roles = (*ROLES, "strength", "decay")
    wanted = torch.cat([x @ w[f"delta_{role}.weight"].T for role in roles], dim=-1)
    torch.testing.assert_close(torch.cat((found.mixed, *found.rates), dim=-1), wanted)
    torch.testing.assert_close(found.gate, x @ w["delta_gate.weight"].T)
    assert len(w) == 6 and w["delta_decay.weight"].shape == (4, 10)


def test_strengths_and_decays_may_stay_floats_beside_packed_weights(context: BuildContext) -> None:
    products = [part for part in inputs(GATED, 10, context).modules() if isinstance(part, Linear)]
    names = [{name for name, _ in part.weight_targets()} for part in products]
    assert {"delta_strength.weight", "delta_decay.weight"} in names


def test_kimis_gate_and_decays_come_through_a_few_channels(context: BuildContext) -> None:
    layer = inputs(KIMI, 10, context)
    w, x = fill(layer), torch.randn(7, 10)
    found: Inputs = layer(x)
    early = [x @ w[f"delta_{role}.weight"].T for role in (*ROLES, "strength")]
    gate, decay = (
        x @ w[f"delta_{role}_down.weight"].T @ w[f"delta_{role}.weight"].T
        for role in ("gate", "decay")
    )
    wanted = torch.cat((*early, decay), dim=-1)
    torch.testing.assert_close(torch.cat((found.mixed, *found.rates), dim=-1), wanted)
    torch.testing.assert_close(found.gate, gate)
    assert w["delta_decay_down.weight"].shape == (5, 10)
    assert w["delta_decay.weight"].shape == (32, 5)


@pytest.mark.parametrize(("settings", "each"), [(GATED, 1), (KIMI, 8)], ids=["gated", "kimi"])
def test_decays_are_computed_in_float32_of_weights_in_float32(
    context: BuildContext, settings: spec.DeltaNet, each: int
) -> None:
    layer = Decays(settings, replace(context, dtype=torch.bfloat16))
    w = fill(layer)
    assert {part.dtype for part in w.values()} == {torch.float32}
    x = torch.randn(3, 2, 4 * each, dtype=torch.bfloat16)
    raised = (1 + (x.float() + w["delta.dt_bias"]).exp()).log().view(3, 2, 4, each)
    expected = -w["delta.A_log"].exp().view(4, 1) * raised
    torch.testing.assert_close(layer(x), expected)
    assert w["delta.A_log"].shape == ((4,) if each == 1 else (1, 1, 4, 1))
