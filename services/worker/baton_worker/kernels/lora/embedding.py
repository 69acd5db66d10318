"""Changes of adapters to an embedding table: rows of their own, and low-rank sums."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.lora import LoraPair, TokenAdapters


class LoraEmbedding:
    """Rows of an embedding table for tokens with adapters: a whole table in place of the base's,
    and scale * A[:, id]^T B added to that. A token's bits do not depend on the others.

    Args:
        adapters: which adapter each token has.
    """

    def __init__(self, adapters: TokenAdapters) -> None:
        self._adapters = adapters
        self._whole = dict[int, Tensor]()
        self._pairs = dict[int, LoraPair]()

    def put(self, slot: int, whole: Tensor | None, pair: LoraPair | None) -> None:
        """Put an adapter into a slot: its table [vocab, width], and its product with A as [vocab,
        rank] and B as [rank, width]; None: it has none."""
        self._whole.pop(slot, None)
        self._pairs.pop(slot, None)
        if whole is not None:
            self._whole[slot] = whole
        if pair is not None:
            self._pairs[slot] = pair

    def apply(self, numbers: Tensor, rows: Tensor) -> Tensor:
        """Change the rows [T, width] of the base that were looked up for int64 [T]; returns them.
        Rows that are changed are copied first: they may be views of the table."""
        for slot, at in self._adapters.rows(len(numbers), numbers.device):
            whole, pair = self._whole.get(slot), self._pairs.get(slot)
            if whole is not None:
                rows = rows.index_copy(0, at, F.embedding(numbers[at], whole))
            if pair is not None:
                rows = rows.index_copy(0, at, _added(rows[at], numbers[at], pair))
        return rows


def _added(rows: Tensor, numbers: Tensor, pair: LoraPair) -> Tensor:
    """One term per rank: a product would choose its order by the number of rows."""
    weights, out = F.embedding(numbers, pair.a).float() * pair.scale, rows.float()
    for weight, direction in zip(weights.unbind(1), pair.b.float(), strict=True):
        out = out.addcmul(weight[:, None], direction)
    return out.to(rows.dtype)
