"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import (
    GELU,
    GELU_TANH,
    QUICK_GELU,
    RELU,
    RELU2,
    SILU,
)
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import GatedLinear, Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": SILU,
    "swish": SILU,
    "gelu": GELU,
    "gelu_new": GELU_TANH,
    "gelu_pytorch_tanh": GELU_TANH,
    "gelu_fast": GELU_TANH,
    "relu": RELU,
    "relu2": RELU2,
    "quick_gelu": QUICK_GELU,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation of this name in `ACTIVATIONS`.

    Raises:
        ModelError: the name is unknown.
    """
    if name not in ACTIVATIONS:
        raise ModelError(f"Activation '{name}' is unknown. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def gating(settings: spec.Glu) -> Callable[[Tensor, Tensor], Tensor]:
    """The function of gate and up projections that feeds the down projection; shapes are equal."""
    act, limit = activation(settings.activation), settings.limit
    if (scale := settings.gate_scale) != 1.0:
        assert limit is None and not settings.up_offset, "no architecture has both"
        return lambda gate, up: act(gate * scale).mul_(up)
    if limit is None:
        offset = settings.up_offset
        return lambda gate, up: act(gate).mul_(up + offset if offset else up)

    def clamped(gate: Tensor, up: Tensor) -> Tensor:
        gate = act(gate.clamp(max=limit)) if settings.limit_first else act(gate).clamp(max=limit)
        return gate.mul_(up.clamp(-limit, limit) + settings.up_offset)

    return clamped


_FUSED = {
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def fused_gate(settings: spec.Glu) -> str | None:
    """The kernels' name of `gating(settings)`; None if kernels do not have it."""
    plain = settings.limit is None and not settings.up_offset and settings.gate_scale == 1.0
    return _FUSED.get(settings.activation) if plain else None


class Glu(Bare):
    """down(activation(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, settings: spec.Glu, hidden: int, context: BuildContext) -> None:
        super().__init__()
        size, bias = settings.intermediate, settings.bias
        gate, fused = gating(settings), fused_gate(settings)
        self.gate_up = GatedLinear(hidden, size, context, gate, fused=fused, bias=bias)
        self.down = Linear(size, {"down": hidden}, context, bias=bias or settings.down_bias)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        out: Tensor = self.down(self.gate_up(x), residual)
        return out


class Mlp(Bare):
    """down(activation(up(x)))."""

    def __init__(self, settings: spec.Mlp, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._activation = activation(settings.activation)
        size, bias = settings.intermediate, settings.bias
        self.up = Linear(hidden, {"up": size}, context, bias=bias)
        self.down = Linear(size, {"down": hidden}, context, bias=bias)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        out: Tensor = self.down(self._activation(self.up(x)), residual)
        return out
