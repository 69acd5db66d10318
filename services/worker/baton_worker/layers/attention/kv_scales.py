"""Calibrated KV scales from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer


class Scales(Layer):
    """One scale for K and one for V per layer (`k_scale` and `v_scale`)."""

    def __init__(self, num_kv_heads: int, context: BuildContext) -> None:
        super().__init__()
        self._num_kv_heads = num_kv_heads
        self._names = (context.name("key_scale"), context.name("value_scale"))
        # Always float32: workers must store the same bits at every model precision.
        self.weight = replace(context, dtype=torch.float32).empty(2, 1)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Two numbers; their tensors have no suffix."""
        yield from zip(self._names, self.weight, strict=True)

    def process_weights_after_loading(self) -> None:
        """Check the scales.

        Raises:
            ModelError: a scale is zero, negative or not finite.
        """
        if not ((self.weight > 0) & self.weight.isfinite()).all():
            raise ModelError(f"{self._names[0]} or {self._names[1]} is not a positive number.")

    @property
    def pair(self) -> tuple[float, float]:
        """The scales of K and V."""
        key, value = self.weight.flatten().tolist()
        return key, value

    @cached_property
    def each(self) -> Tensor:
        """Scales per KV head, as `kernels.kv_pages.put` expects them: [2 * num_kv_heads, 1]."""
        return self.weight.repeat_interleave(self._num_kv_heads, 0)
