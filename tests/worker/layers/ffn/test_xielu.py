"""The learned activation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ffn.xielu import PARAMETERS, Xielu

VALUES = (0.7, -0.4, 0.5, -1e-6)
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


def plain(x: Tensor) -> Tensor:
    """Equation 11 of arXiv:2411.13010 in float64."""
    above, below = F.softplus(torch.tensor(VALUES[:2], dtype=torch.float64)) + torch.tensor(
        (0.0, VALUES[2]), dtype=torch.float64
    )
    x = x.double()
    return torch.where(x > 0, above * x * x, below * (torch.expm1(x) - x)) + VALUES[2] * x


def test_values_of_a_spec_are_no_tensors_of_a_checkpoint() -> None:
    context = BuildContext(torch.device("cpu"), torch.bfloat16)
    assert not [*Xielu(VALUES, context).weight_targets()]
    names = [name for name, _ in Xielu(None, context).weight_targets()]
    assert names == [*PARAMETERS]


def test_equals_its_definition_on_both_sides_of_zero() -> None:
    layer = Xielu(VALUES, BuildContext(torch.device("cpu"), torch.float32))
    for dtype, tolerance in TOLERANCES.items():
        x = torch.cat((torch.linspace(-30, 30, 7001), torch.linspace(-0.3, 0.01, 701))).to(dtype)
        for rows in (x[:, None], x[:7168].reshape(-1, 64)):
            for y in (layer(rows), layer._twin(rows)):
                assert y.dtype is dtype and y.shape == rows.shape
                torch.testing.assert_close(y.double(), plain(rows), rtol=tolerance, atol=2e-6)
    extreme = torch.tensor([-1e18, 1e18, torch.nan])
    assert layer(extreme).isfinite().tolist() == [True, True, False]
