"""Dense layers of a head over pooled states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import (
    GELU,
    GELU_TANH,
    SILU,
    sigmoid,
    tanh,
)
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": tanh,
    "relu": F.relu,
    "gelu": GELU,
    "gelu_pytorch_tanh": GELU_TANH,
    "silu": SILU,
    "sigmoid": sigmoid,
}


class Dense(nn.Module):
    """norm(activation(W x + b)): see `spec.Dense`."""

    def __init__(self, settings: spec.Dense, context: BuildContext) -> None:
        super().__init__()
        if settings.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ModelError(f"Activation '{settings.activation}' is unknown. Known: {known}.")
        self._activation = ACTIVATIONS[settings.activation]
        here = replace(context, name=lambda role: role)
        outputs = {settings.name: settings.outputs}
        self.linear = Linear(settings.inputs, outputs, here, bias=settings.bias)
        self.norm = None
        if settings.norm is not None:
            self.norm = norm(settings.norm, settings.outputs, settings.norm_name, here)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] to [N, outputs]."""
        x = self._activation(self.linear(x))
        return x if self.norm is None else self.norm(x)
