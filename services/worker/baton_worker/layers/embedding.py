"""The embedding table."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.layer import Layer, Site


class Embedding(Layer):
    """Token ids to vectors."""

    def __init__(self, vocab: int, hidden: int, site: Site) -> None:
        super().__init__()
        self._name = site.name("embedding")
        self.weight = site.empty(vocab, hidden)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """The table."""
        yield f"{self._name}.weight", self.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [T] to [T, hidden]."""
        return F.embedding(tokens, self.weight)
