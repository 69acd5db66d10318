"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.layers.layer import Site
from baton_worker.layers.linear import Linear
from baton_worker.models import spec

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Glu(nn.Module):
    """down(activation(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, settings: spec.Glu, hidden: int, site: Site) -> None:
        super().__init__()
        if settings.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ModelError(f"Activation '{settings.activation}' is unknown. Known: {known}.")
        self._activation = ACTIVATIONS[settings.activation]
        size, bias = settings.intermediate, settings.bias
        self.gate_up = Linear(hidden, {"gate": size, "up": size}, site, bias=bias)
        self.down = Linear(size, {"down": hidden}, site, bias=bias)

    def forward(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """[T, hidden] to [T, hidden], plus `residual`."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(self._activation(gate).mul_(up), residual)
        return out
