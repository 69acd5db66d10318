"""Input projections of a delta net, computed per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import exp, softplus
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear


class Inputs(NamedTuple):
    """Projections of T tokens, in the dtype of the model."""

    mixed: Tensor
    """[T, convolved]: Q, K and V before the convolution."""
    rates: tuple[Tensor, ...]
    """[T, num_heads + decays] in one or two parts: beta before its sigmoid, and the input of
    `Decays`."""
    gate: Tensor
    """[T, value_width]: the output gate."""


def inputs(settings: spec.DeltaNet, hidden: int, context: BuildContext) -> nn.Module:
    """x [T, hidden] to `Inputs`."""
    kind = Whole if settings.rank is None else Narrow
    return kind(settings, hidden, context)


def _mixed(settings: spec.DeltaNet) -> dict[str, int]:
    key, value = settings.key_width, settings.value_width
    return {"delta_query": key, "delta_key": key, "delta_value": value}


class Whole(nn.Module):
    """Gated DeltaNet. Beta and decays have few channels, which quantised checkpoints keep as
    floats, so they are a product of their own."""

    def __init__(self, settings: spec.DeltaNet, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._sizes = (settings.convolved, settings.value_width)
        parts = _mixed(settings) | {"delta_gate": settings.value_width}
        self.project = Linear(hidden, parts, context)
        rates = {"delta_strength": settings.num_heads, "delta_decay": settings.decays}
        self.rates = Linear(hidden, rates, context)

    def forward(self, x: Tensor) -> Inputs:
        """See `inputs`."""
        mixed, gate = self.project(x).split(self._sizes, dim=-1)
        return Inputs(mixed, (self.rates(x),), gate)


class Narrow(nn.Module):
    """Kimi Delta Attention: low-rank projections to the gate and the decays."""

    def __init__(self, settings: spec.DeltaNet, hidden: int, context: BuildContext) -> None:
        super().__init__()
        assert settings.rank is not None
        rank = settings.rank
        self.project = Linear(hidden, _mixed(settings), context)
        self.gate_down = Linear(hidden, {"delta_gate_down": rank}, context)
        self.gate = Linear(rank, {"delta_gate": settings.value_width}, context)
        self.strength = Linear(hidden, {"delta_strength": settings.num_heads}, context)
        self.decay_down = Linear(hidden, {"delta_decay_down": rank}, context)
        self.decay = Linear(rank, {"delta_decay": settings.decays}, context)

    def forward(self, x: Tensor) -> Inputs:
        """See `inputs`."""
        rates = self.strength(x), self.decay(self.decay_down(x))
        return Inputs(self.project(x), rates, self.gate(self.gate_down(x)))


class Decays(Layer):
    """-exp(A_log) * softplus(x + dt_bias): the log decay of the state. Both parameters are float32,
    also in checkpoints of bfloat16."""

    def __init__(self, settings: spec.DeltaNet, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name("delta")
        shape = (settings.num_heads,) if settings.rank is None else (1, 1, settings.num_heads, 1)
        context = replace(context, dtype=torch.float32)
        self.rate, self.bias = context.empty(*shape), context.empty(settings.decays)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Two tensors without suffix."""
        yield f"{self._name}.A_log", self.rate
        yield f"{self._name}.dt_bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """Any float [..., decays] to float32 [..., num_heads, 1 or key_dim]."""
        raised = softplus(x.float() + self.bias)
        return -exp(self.rate).view(-1, 1) * torch.unflatten(raised, -1, (self.rate.numel(), -1))
