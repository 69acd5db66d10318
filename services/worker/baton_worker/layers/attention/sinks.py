"""Attention sinks: terms in every token's softmax that are not in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer

Attend: TypeAlias = Callable[[Tensor], Tensor]
"""Attention over the cache plus one zero-valued sink score per head, [num_heads], or per token and
head, [T, num_heads]. Returns [T, num_heads * width of cached values]."""


class Sinks(Layer):
    """One learned score per head (gpt-oss)."""

    def __init__(self, settings: spec.Attention, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name("sinks")
        self.weight = context.empty(settings.num_heads)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The scores; their tensor has no suffix."""
        yield self._name, self.weight

    def forward(self, query: Tensor, attend: Attend) -> Tensor:
        """Queries [T, num_heads, head_dim] to head outputs, like `attend`."""
        return attend(self.weight)


class SinkKeys(Layer):
    """Learned KV that precedes the KV of every text (Pangu Pro).

    The learned scores enter attention over the cache as one score, their log-sum-exp. Their values'
    remaining weight is read from a channel in which every cached value is one (see
    `layers.attention.qkv.PaddedValue`).
    """

    def __init__(
        self, settings: spec.Attention, context: BuildContext, norm: nn.Module | None
    ) -> None:
        super().__init__()
        assert settings.value_dim < settings.head_dim
        self._settings, self.norm = settings, norm
        self._names = (context.name("sink_keys"), context.name("sink_values"))
        shape = (settings.sink_keys, settings.num_kv_heads)
        self.key = context.empty(*shape, settings.head_dim)
        self.value = context.empty(*shape, settings.value_dim)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """K and V; their tensors have no suffix."""
        yield from zip(self._names, (self.key, self.value), strict=True)

    def forward(self, query: Tensor, attend: Attend) -> Tensor:
        """Queries [T, num_heads, head_dim] to head outputs, like `attend`."""
        settings = self._settings
        key = self.key if self.norm is None else self.norm(self.key)
        grouped = torch.unflatten(query, 1, (settings.num_kv_heads, -1))
        scores = torch.einsum("tkgd,skd->tkgs", grouped.float(), key.float()) * settings.scale
        sunk = torch.einsum("tkgs,skd->tkgd", scores.softmax(-1), self.value.float()).flatten(1, 2)
        attended = attend(scores.logsumexp(-1).flatten(1)).clone()
        attended = attended.view(*query.shape[:2], -1)
        width = settings.value_dim
        attended[..., :width] += (1 - attended[..., width, None]) * sunk.to(query.dtype)
        return attended.flatten(1)
