"""The indexer that selects the KV a token attends to (DeepSeek-V3.2, arXiv:2512.02556)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.attention.sparse_plan import BLOCK, Late, best
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.rope import Angles, rotate_

_AT_ONCE = 1024
"""Maximum number of key blocks in memory at a time, each paired with the queries of one token."""


class Indexer(nn.Module):
    """Lightning indexer: narrow query heads with one shared key per token:

    score(t, s) = sum over heads h of weight(t, h) * relu(query(t, h) . key(s))

    Each product covers the heads of one token and `BLOCK` keys, whatever the numbers of tokens and
    keys: torch picks algorithms by size, and a score that differs in the last bit could select
    another key.
    """

    def __init__(
        self, settings: spec.SparseLatentAttention, hidden: int, context: BuildContext
    ) -> None:
        super().__init__()
        indexer = settings.indexer
        assert indexer is not None
        self._own, heads, dim = indexer, indexer.heads, indexer.dim
        assert settings.query_rank is not None, "its queries are made of the narrow vector"
        self._settings = settings
        # These see the late tokens of a step only, and adapter numbers are those of all tokens.
        late = replace(context, adapters=None)
        self.query = Linear(settings.query_rank, {"index_query": heads * dim}, late)
        self.key = Linear(hidden, {"index_key": dim}, context)
        self.norm = norm(indexer.norm, dim, "index_key_norm", context)
        self.weights = Exact(hidden, {"index_weights": heads}, replace(late, dtype=torch.float32))

    def keys(self, x: Tensor, angles: Angles) -> Tensor:
        """Index keys to cache for tokens x [T, hidden], rotated by `angles`: [T, dim]."""
        keys: Tensor = self.norm(self.key(x))[:, None]
        rotate_(keys, angles.laid_out(interleaved=self._own.interleaved))
        return keys[:, 0]

    def forward(self, x: Tensor, low: Tensor, angles: Angles, late: Late, rows: Tensor) -> Tensor:
        """Select KV slots for the late tokens.

        Args:
            x: [T, hidden].
            low: [T, query_rank].
            angles: of all T tokens.
            late: the late tokens among them.
            rows: cache rows of all slots, [num_slots, kept_width].

        Returns:
            int32 [S, top_k] slots, see `sparse_plan.Plan`.
        """
        x, low, angles = x[late.tokens], low[late.tokens], angles.of(late.tokens)
        query, weights = self._queries(low, angles), self._weights(x)
        keys, top_k = rows[:, self._settings.width :], self._settings.top_k
        chosen = late.slots.new_empty((len(x), top_k), dtype=torch.int32)
        for some, blocks in late.parts(_AT_ONCE):
            slots = late.slots[late.rows[some], : blocks * BLOCK]
            each = scores(query[some], weights[some], keys[slots].float())
            chosen[some] = slots.gather(1, best(each, late.positions[some], top_k))
        return chosen

    def _queries(self, low: Tensor, angles: Angles) -> Tensor:
        """[S, query_rank] to float32 [S, heads, dim], scaled."""
        dim, interleaved = self._own.dim, self._own.interleaved
        query: Tensor = self.query(low).view(len(low), -1, dim)
        rotate_(query, angles.laid_out(interleaved=interleaved))
        return query.float() * float(dim**-0.5)

    def _weights(self, x: Tensor) -> Tensor:
        """[S, hidden] to float32 [S, 1, heads]."""
        weights: Tensor = self.weights(x.float()) * float(self._own.heads**-0.5)
        return weights[:, None]


class Exact(Linear):
    """A linear layer that stays unquantised: a rounded score could select other KV, as a rounded
    router logit could select another expert."""

    def load_quantized(self, name: str, weight: QuantizedWeight) -> bool:
        """Decline: quantised weights are dequantised first."""
        return False

    def _own(self) -> Tensor:
        assert self.weight is not None
        return self.weight


def scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Scores of keys [s, blocks * BLOCK, dim] for queries [s, heads, dim] of s tokens with weights
    [s, 1, heads]: [s, blocks * BLOCK]. All are float32."""
    blocks = keys.view(-1, BLOCK, keys.shape[-1])
    count = len(blocks) // len(query)
    products = torch.bmm(_repeated(query, count), blocks.transpose(1, 2)).relu_()
    return torch.bmm(_repeated(weights, count), products).view(len(query), -1)


def _repeated(x: Tensor, count: int) -> Tensor:
    """Repeat each element of [s, ...] `count` times: [s * count, ...]."""
    return x[:, None].expand(-1, count, *x.shape[1:]).flatten(0, 1)
