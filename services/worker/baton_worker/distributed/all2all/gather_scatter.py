"""How the tokens of all ranks come to their experts, and the results back to their ranks.

    rank 0   a b       gather        a b c       experts of 0   a b c     scatter   a b
    rank 1   c       ---------->     a b c       experts of 1   a b c    -------->  c

Every rank runs its experts for the tokens of all ranks. What a token has got from the experts of
each rank is a summand: it is added up, in the order of ranks, where the token came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.distributed.communicator import Communicator


class AllToAll(Protocol):
    """The contract of what a row of `ALL2ALL` returns, when it is called with the ranks. All ranks
    make the same calls; `counts` are the tokens of each of them, some of which may be none."""

    def begin_gather(self, rows: Tensor, counts: Sequence[int]) -> Callable[[], Tensor]:
        """Rows [counts[rank], n] to those of all ranks [sum(counts), n], in the order of ranks.
        They are there when what is returned is called. This rank may compute until then."""
        ...

    def scatter(self, summands: Tensor, counts: Sequence[int]) -> Tensor:
        """[sum(counts), n] of every rank to the sums of this rank's own rows, [counts[rank], n]."""
        ...


class Naive:
    """Each rank in turn tells all others its tokens; every sum is taken everywhere."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks

    def begin_gather(self, rows: Tensor, counts: Sequence[int]) -> Callable[[], Tensor]:
        """See `AllToAll`. All of it happens here and now."""
        parts = list[Tensor]()
        for source, count in enumerate(counts):
            mine = source == self._ranks.rank
            parts.append(rows.contiguous() if mine else rows.new_empty((count, *rows.shape[1:])))
            if count:
                self._ranks.broadcast(parts[-1], source)
        return lambda: torch.cat(parts)

    def scatter(self, summands: Tensor, counts: Sequence[int]) -> Tensor:
        """See `AllToAll`."""
        rank = self._ranks.rank
        return self._ranks.all_reduce(summands).narrow(0, sum(counts[:rank]), counts[rank])


class GatherScatter:
    """One gather and one scattered sum, of as many rows from each rank as the busiest one has."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks

    def begin_gather(self, rows: Tensor, counts: Sequence[int]) -> Callable[[], Tensor]:
        """See `AllToAll`."""
        parts = self._ranks.begin_all_gather(_padded(rows, max(counts)))
        return lambda: torch.cat([p[:count] for p, count in zip(parts(), counts, strict=True)])

    def scatter(self, summands: Tensor, counts: Sequence[int]) -> Tensor:
        """See `AllToAll`."""
        parts = [_padded(part, max(counts)) for part in torch.split(summands, list(counts))]
        return self._ranks.reduce_scatter(parts)[: counts[self._ranks.rank]]


def _padded(rows: Tensor, count: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, count - len(rows)))
