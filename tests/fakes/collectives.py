"""Every rank's part in a round of collective operations: `python -m tests.fakes.collectives`.

What a rank has computed goes to rank 0 in the end, where the test looks at it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.distributed.host_ranks import HostRanks

SHAPE = (5, 33)


def mine(rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a rank brings along."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(SHAPE, generator=generator).to(dtype)


def pair_of(rank: int, size: int) -> range:
    """The ranks that a rank exchanges something with: the first two, or those behind them."""
    return range(2) if rank < 2 else range(2, size)


def take_part(ranks: Communicator) -> list[Tensor]:
    """One of each operation; all of it as float32, in one order."""
    found = [ranks.all_reduce(mine(ranks.rank)), ranks.all_reduce(mine(ranks.rank)[2:3])]
    found.append(ranks.all_reduce(mine(ranks.rank, torch.bfloat16)).float())
    found.append(ranks.reduce_scatter([mine(ranks.rank) + to for to in range(ranks.size)]))
    found += ranks.all_gather(mine(ranks.rank).T)
    coming = ranks.begin_all_gather(mine(ranks.rank))
    found += [2 * mine(ranks.rank), *coming()]
    among = pair_of(ranks.rank, ranks.size)
    found += ranks.exchange([mine(ranks.rank) + to for to in among], among)
    for source in range(ranks.size):
        given = mine(ranks.rank)
        ranks.broadcast(given, source)
        found.append(given)
    found.append(_passed_on(ranks))
    found.append(torch.tensor(numbers(ranks, 10**12 + ranks.rank, torch.device("cpu"))).float())
    return found


def _passed_on(ranks: Communicator) -> Tensor:
    """A tensor that goes from rank to rank, each of which adds its number."""
    carried = torch.zeros(SHAPE)
    if ranks.rank:
        ranks.receive(carried, ranks.rank - 1)
    carried = carried + ranks.rank
    if ranks.rank < ranks.size - 1:
        ranks.send(carried, ranks.rank + 1)
    return carried


def main() -> None:
    meeting, rank, size = sys.argv[1:]
    ranks = HostRanks(Path(meeting), int(rank), int(size))
    for tensor in take_part(ranks):
        ranks.send(tensor, 0)


if __name__ == "__main__":
    main()
