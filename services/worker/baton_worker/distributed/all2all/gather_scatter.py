"""All-gather of tokens to the expert ranks, reduce-scatter of the results.

    rank 0   a b       gather        a b c       experts of 0   a b c     scatter   a b
    rank 1   c       ---------->     a b c       experts of 1   a b c    -------->  c

Every rank runs its experts on the tokens of all ranks. The partial results of a token are summed in
rank order, on the rank that owns the token. Where a token's rank is to sum them in another order,
ranks `deliver` them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.distributed.communicator import Communicator


class AllToAll(Protocol):
    """The contract of an entry of `ALL2ALL`, which is constructed with the communicator. All ranks
    make the same calls; `counts` are the tokens per rank, and may be 0."""

    def begin_gather(self, rows: Tensor, counts: Sequence[int]) -> Callable[[], Tensor]:
        """Start to gather rows [counts[rank], n] into [sum(counts), n], in rank order. The returned
        function waits for the result; this rank may compute until it is called."""
        ...

    def scatter(self, summands: Tensor, counts: Sequence[int]) -> Tensor:
        """Sum [sum(counts), n] over all ranks; returns this rank's own rows, [counts[rank], n]."""
        ...

    def deliver(self, rows: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
        """Send each rank its rows: `counts[source][rank]` go from rank `source` to `rank`. Takes
        [sum(counts[own rank]), n], by the rank that they are for; returns those for this rank, by
        the rank that they are from."""
        ...


class Naive:
    """Each rank in turn broadcasts its tokens; sums are an all-reduce."""

    def __init__(self, ranks: Communicator) -> None:
        self._ranks = ranks

    def begin_gather(self, rows: Tensor, counts: Sequence[int]) -> Callable[[], Tensor]:
        """See `AllToAll`. Synchronous."""
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

    def deliver(self, rows: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
        """See `AllToAll`."""
        whole = self.begin_gather(rows, [sum(row) for row in counts])()
        parts = torch.split(whole, [count for row in counts for count in row])
        return torch.cat(parts[self._ranks.rank :: self._ranks.size])


class GatherScatter:
    """One all-gather and one reduce-scatter, padded to the largest count of any rank."""

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

    def deliver(self, rows: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
        """See `AllToAll`. One all-to-all, padded to the largest count between two ranks."""
        rank, most = self._ranks.rank, max(map(max, counts))
        parts = [_padded(part, most) for part in torch.split(rows, list(counts[rank]))]
        received = self._ranks.exchange(parts, range(self._ranks.size))
        return torch.cat([part[: row[rank]] for part, row in zip(received, counts, strict=True)])


def _padded(rows: Tensor, count: int) -> Tensor:
    return F.pad(rows, (0, 0, 0, count - len(rows)))
