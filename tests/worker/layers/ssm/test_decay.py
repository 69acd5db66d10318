"""Rates as a scan wants them."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.decay import StateDecay


def test_rates_are_powers_of_two_laid_out_like_a_state(context: BuildContext) -> None:
    dynamics = StateDecay(spec.Mamba(channels=6, state_size=5, step_rank=3, taps=4), context)
    logarithms = torch.randn(6, 5)
    dynamics.rates.copy_(logarithms)
    dynamics.process_weights_after_loading()
    left = torch.exp2(0.3 * dynamics.rates)
    torch.testing.assert_close(left, torch.exp(-0.3 * logarithms.exp()).T)
    assert dynamics.rates.is_contiguous()


def test_tensors_without_a_suffix_and_a_bias(context: BuildContext) -> None:
    dynamics = StateDecay(spec.Mamba(channels=6, state_size=5, step_rank=3, taps=4), context)
    names = [name for name, _ in dynamics.weight_targets()]
    assert names == ["scan_rates", "scan_skip", "scan_step.bias"]
