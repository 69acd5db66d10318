"""Gemma 3n's embeddings of what an encoder makes, and of the tokens that frame it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm


class SoftTokenEmbedder(nn.Module):
    """States and rows of a table, each behind a norm of their own, in the space of the language
    model.

    Args:
        name: the checkpoint's.
        rows: of the table.
        width: channels of a state and of a row.
        hidden: channels of an embedding.
    """

    def __init__(
        self, name: str, rows: int, width: int, hidden: int, eps: float, context: BuildContext
    ) -> None:
        super().__init__()
        here, own = replace(context, name=str).under(name), spec.Norm(eps)
        self.table = Table(rows, width, "embedding", here)
        self.hard_norm = norm(own, width, "hard_embedding_norm", here)
        self.soft_norm = norm(own, width, "soft_embedding_norm", here)
        self.project = Linear(width, {"embedding_projection": hidden}, here)
        bare = spec.Norm(eps, scaled=False)
        self.last_norm = norm(bare, hidden, "embedding_post_projection_norm", here)

    def forward(self, states: Tensor, rows: Sequence[int]) -> Tensor:
        """[n, width], and numbers of rows behind them, to [n + rows, hidden]."""
        numbers = torch.tensor(rows, dtype=torch.int64, device=states.device)
        hard = self.hard_norm(self.table(numbers))
        out: Tensor = self.last_norm(self.project(torch.cat((self.soft_norm(states), hard))))
        return out
