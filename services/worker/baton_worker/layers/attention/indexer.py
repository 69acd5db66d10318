"""The index that chooses which keys a token attends to (DeepSeek-V3.2, arXiv:2512.02556)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.linear import Stored
from baton_worker.kernels.quantized_weights import Rounding
from baton_worker.layers.attention.sparse_plan import BLOCK, Late, best
from baton_worker.layers.layer import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.rope.rope import Angles, rotate_

_AT_ONCE = 1024
"""Blocks of keys, each beside the queries of one token, that are in memory together."""


class Indexer(nn.Module):
    """A few narrow heads that share one key per token:

    score(t, s) = sum over heads h of weight(t, h) * relu(query(t, h) . key(s))

    A product is always that of the heads of one token and of `BLOCK` keys, however many tokens and
    keys there are: torch takes other algorithms for other sizes, and a score that differed in its
    last bit could choose another key.
    """

    def __init__(
        self, settings: spec.SparseLatentAttention, hidden: int, site: BuildContext
    ) -> None:
        super().__init__()
        heads, dim = settings.index_heads, settings.index_dim
        assert settings.query_rank is not None, "its queries are made of the narrow vector"
        self._settings = settings
        self.query = Linear(settings.query_rank, {"index_query": heads * dim}, site)
        self.key = Linear(hidden, {"index_key": dim}, site)
        self.norm = norm(settings.index_norm, dim, "index_key_norm", site)
        self.weights = Exact(hidden, {"index_weights": heads}, replace(site, dtype=torch.float32))

    def keys(self, x: Tensor, angles: Angles) -> Tensor:
        """What the cache keeps of tokens x [T, hidden], which turn by `angles`: [T, index_dim]."""
        keys: Tensor = self.norm(self.key(x))[:, None]
        rotate_(keys, angles.laid_out(interleaved=self._settings.index_interleaved))
        return keys[:, 0]

    def forward(self, x: Tensor, low: Tensor, angles: Angles, late: Late, rows: Tensor) -> Tensor:
        """Choose for the late tokens.

        Args:
            x: [T, hidden].
            low: [T, query_rank].
            angles: of all T tokens.
            late: which of them.
            rows: what the cache keeps of every slot, [num_slots, kept_width].

        Returns:
            int32 [S, top_k] slots, see `chosen.Plan`.
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
        """[S, query_rank] to float32 [S, index_heads, index_dim], scaled."""
        dim, interleaved = self._settings.index_dim, self._settings.index_interleaved
        query: Tensor = self.query(low).view(len(low), -1, dim)
        rotate_(query, angles.laid_out(interleaved=interleaved))
        return query.float() * float(dim**-0.5)

    def _weights(self, x: Tensor) -> Tensor:
        """[S, hidden] to float32 [S, 1, index_heads]."""
        weights: Tensor = self.weights(x.float()) * float(self._settings.index_heads**-0.5)
        return weights[:, None]


class Exact(Linear):
    """Floats whatever the other weights of a model are rounded to: a rounded score chooses another
    key, as that of a router would another expert."""

    def load_quantized(self, name: str, weight: Stored) -> bool:
        """Leave it."""
        return False

    def _quantised(self, kind: str) -> list[Rounding]:
        return []


def scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """What keys [s, blocks * BLOCK, dim] of s tokens count for queries [s, heads, dim] with weights
    [s, 1, heads]: [s, blocks * BLOCK]. All are float32."""
    blocks = keys.view(-1, BLOCK, keys.shape[-1])
    count = len(blocks) // len(query)
    products = torch.bmm(_repeated(query, count), blocks.transpose(1, 2)).relu_()
    return torch.bmm(_repeated(weights, count), products).view(len(query), -1)


def _repeated(x: Tensor, count: int) -> Tensor:
    """Each of [s, ...] `count` times: [s * count, ...]."""
    return x[:, None].expand(-1, count, *x.shape[1:]).flatten(0, 1)
