"""Embeddings of media that take the place of those of placeholder tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.layers.attention.cross_states import CrossInputs


class MediaEmbeddings(NamedTuple):
    """Embeddings of media for the placeholders of a step."""

    places: Tensor
    """int64 [M]: where on the flat token axis."""
    values: Tensor
    """[M, hidden * (1 + depth)], in the dtype of the model: what takes the place of tokens, then
    what is added behind each of the first `depth` layers (DeepStack, Meng et al. 2024,
    arXiv:2406.04334)."""
    added: bool = False
    """Whether the first are added to those of the tokens, too."""
    cross: CrossInputs | None = None
    """Encoder states that tokens see; None: no token sees any."""

    def into(self, x: Tensor) -> Tensor:
        """[T, hidden] of the tokens, with these rows replaced or added."""
        put = x.index_add if self.added else x.index_copy
        return put(0, self.places, self.values[:, : x.shape[1]])

    def onto(self, x: Tensor, layer: int) -> Tensor:
        """[T, hidden] behind a layer, with what is added there."""
        hidden = x.shape[1]
        added = self.values[:, (layer + 1) * hidden : (layer + 2) * hidden]
        return x.index_add(0, self.places, added) if added.shape[1] else x

    def take(self, chosen: npt.NDArray[np.bool_]) -> MediaEmbeddings:
        """The embeddings of the tokens where `chosen` [T] holds, for a step of these tokens
        only."""
        moved = torch.from_numpy(np.cumsum(chosen) - 1).to(self.places.device)
        mask = torch.from_numpy(chosen).to(self.places.device)[self.places]
        assert self.cross is None, "tokens that attend to media are not run apart"
        return MediaEmbeddings(moved[self.places[mask]], self.values[mask], self.added)
