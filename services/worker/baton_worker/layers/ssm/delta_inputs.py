"""What a delta net computes of its input, token by token, before anything is mixed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.invariant import exp, softplus
from baton_worker.layers.layer import BuildContext, Layer
from baton_worker.layers.linear import Linear


class Inputs(NamedTuple):
    """Projections of T tokens, in the dtype of the model."""

    brought: Tensor
    """[T, convolved + num_heads + decays]: queries, keys and values, not yet convolved; strengths
    before their sigmoid, and what `Decays` are made of."""
    gate: Tensor
    """[T, value_width]: of what the layer puts out."""


def inputs(settings: spec.DeltaNet, hidden: int, site: BuildContext) -> nn.Module:
    """x [T, hidden] to `Inputs`."""
    kind = Whole if settings.rank is None else Narrow
    return kind(settings, hidden, site)


def _mixed(settings: spec.DeltaNet) -> dict[str, int]:
    key, value = settings.key_width, settings.value_width
    return {"delta_query": key, "delta_key": key, "delta_value": value}


class Whole(nn.Module):
    """Gated DeltaNet. Strengths and decays are so few that a checkpoint of quantised weights has
    them as floats: they are a product of their own."""

    def __init__(self, settings: spec.DeltaNet, hidden: int, site: BuildContext) -> None:
        super().__init__()
        self._sizes = (settings.convolved, settings.value_width)
        parts = _mixed(settings) | {"delta_gate": settings.value_width}
        self.project = Linear(hidden, parts, site)
        rates = {"delta_strength": settings.num_heads, "delta_decay": settings.decays}
        self.rates = Linear(hidden, rates, site)

    def forward(self, x: Tensor) -> Inputs:
        """See `inputs`."""
        mixed, gate = self.project(x).split(self._sizes, dim=-1)
        return Inputs(torch.cat((mixed, self.rates(x)), dim=-1), gate)


class Narrow(nn.Module):
    """Kimi Delta Attention: the gate and the decays by way of a few channels."""

    def __init__(self, settings: spec.DeltaNet, hidden: int, site: BuildContext) -> None:
        super().__init__()
        assert settings.rank is not None
        rank = settings.rank
        self.project = Linear(hidden, _mixed(settings), site)
        self.gate_down = Linear(hidden, {"delta_gate_down": rank}, site)
        self.gate = Linear(rank, {"delta_gate": settings.value_width}, site)
        self.strength = Linear(hidden, {"delta_strength": settings.num_heads}, site)
        self.decay_down = Linear(hidden, {"delta_decay_down": rank}, site)
        self.decay = Linear(rank, {"delta_decay": settings.decays}, site)

    def forward(self, x: Tensor) -> Inputs:
        """See `inputs`."""
        parts = (self.project(x), self.strength(x), self.decay(self.decay_down(x)))
        return Inputs(torch.cat(parts, dim=-1), self.gate(self.gate_down(x)))


class Decays(Layer):
    """-exp(A_log) * softplus(x + dt_bias): the logarithm of what is left of the state. Both are
    kept in float32, as checkpoints of bfloat16 may have them."""

    def __init__(self, settings: spec.DeltaNet, site: BuildContext) -> None:
        super().__init__()
        self._name = site.name("delta")
        shape = (settings.num_heads,) if settings.rank is None else (1, 1, settings.num_heads, 1)
        self.rate, self.bias = (
            nn.Parameter(
                torch.empty(size, dtype=torch.float32, device=site.device), requires_grad=False
            )
            for size in (shape, (settings.decays,))
        )

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Two bare tensors."""
        yield f"{self._name}.A_log", self.rate
        yield f"{self._name}.dt_bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """Any float [..., decays] to float32 [..., num_heads, 1 or key_dim]."""
        raised = softplus(x.float() + self.bias)
        return -exp(self.rate).view(-1, 1) * torch.unflatten(raised, -1, (self.rate.numel(), -1))
