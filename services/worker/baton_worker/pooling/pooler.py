"""Pooled states to output vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton.protocol import Pooling
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.pooler_head import Dense
from baton_worker.pooling.recipe import Finish, PoolingRecipe

FINISHES: dict[Finish, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
}


class Pooler(nn.Module):
    """The head of a recipe and its final function. Holds weights only, no request state."""

    def __init__(self, recipe: PoolingRecipe, context: BuildContext) -> None:
        super().__init__()
        self.recipe = recipe
        self._dtype = context.dtype
        self._finish = FINISHES[recipe.finish]
        self.head = nn.ModuleList(Dense(layer, context) for layer in recipe.head)

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    @torch.inference_mode()
    def forward(self, states: Sequence[Tensor], wanted: Sequence[Pooling]) -> list[Tensor]:
        """Compute outputs.

        Args:
            states: per text, float32 [K, hidden]: its pooled states, K = 1 except for step rewards.
            wanted: per text, the options of its request.

        Returns:
            Per text, float32 [K, width], cut to the requested dimensions.
        """
        x = torch.cat(list(states)).to(self._dtype)
        for layer in self.head:
            x = layer(x)
        parts = torch.split(x.float() - self.recipe.logit_bias, [len(some) for some in states])
        return [self._last(part, pooling) for part, pooling in zip(parts, wanted, strict=True)]

    def _last(self, numbers: Tensor, pooling: Pooling) -> Tensor:
        if pooling.dimensions:
            numbers = numbers[:, : pooling.dimensions]
        return numbers if pooling.raw else self._finish(numbers)
