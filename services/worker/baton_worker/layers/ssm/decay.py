"""Decay parameters of a selective scan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import exp
from baton_worker.layers.layer import Layer


class StateDecay(Layer):
    """Decay rates, skip weights and time-step biases; always float32."""

    def __init__(self, settings: spec.Mamba, context: BuildContext) -> None:
        super().__init__()
        self._names = (context.name("scan_rates"), context.name("scan_skip"))
        self._bias_name = f"{context.name('scan_step')}.bias"
        context = replace(context, dtype=torch.float32)
        self.rates = context.empty(settings.channels, settings.state_size)
        self.skip = context.empty(settings.channels)
        self.bias = context.empty(settings.channels)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The logarithms of the rates (A_log) and the skips (D), without suffix; the bias."""
        yield from zip(self._names, (self.rates, self.skip), strict=True)
        yield self._bias_name, self.bias

    def process_weights_after_loading(self) -> None:
        """Turn the logarithms into rates in the layout of a state, in base 2: exp2 is faster than
        exp."""
        rates = exp(self.rates).T * -math.log2(math.e)
        self.rates = nn.Parameter(rates.contiguous(), requires_grad=False)
