"""The process group of the ranks of a model: NCCL between GPUs, shared memory between CPUs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baton_worker.distributed.communicator import Arrival, sum_in_rank_order
from baton_worker.distributed.host_ranks import HostRanks

_TIMEOUT = timedelta(days=30)
"""Effectively unlimited: a rank may compute for long, and the connections of a rank that exits are
closed, which its peers notice at once."""


class Nccl:
    """Ranks on the GPUs of one machine, rank r on device r.

    Args:
        in_order: sums are taken in the order of ranks. NCCL's own order depends on the size of a
            message, and so on how many tokens a step has.
    """

    def __init__(self, meeting: Path, rank: int, size: int, *, in_order: bool = False) -> None:
        self.rank, self.size, self._in_order = rank, size, in_order
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _TIMEOUT
        store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
        self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Communicator`."""
        if self._in_order:
            return sum_in_rank_order(self.all_gather(tensor))
        tensor = tensor.contiguous()
        self._group.allreduce([tensor]).wait()
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Communicator`."""
        return self.begin_all_gather(tensor)()

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """See `Communicator`."""
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        work = self._group.allgather([parts], [tensor])

        def ended() -> list[Tensor]:
            work.wait()
            return parts

        return ended

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        """See `Communicator`."""
        if self._in_order:
            return sum_in_rank_order(self.exchange(parts, range(self.size)))
        parts = [part.contiguous() for part in parts]
        total = torch.empty_like(parts[self.rank])
        self._group.reduce_scatter([total], [parts]).wait()
        return total

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """See `Communicator`. Ranks outside of `among` get and send one number of any value: NCCL
        before 2.13 skips empty messages, and a rank that skips all of them leaves the others
        waiting."""
        beside = parts[0].new_empty((2, self.size, 1))
        sends, receives = list(beside[0]), list(beside[1])
        for rank, part in zip(among, parts, strict=True):
            sends[rank] = part.contiguous()
            receives[rank] = torch.empty_like(sends[rank])
        self._group.alltoall(receives, sends).wait()
        return [receives[rank] for rank in among]

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        self._group.broadcast(tensor, source).wait()

    def send(self, tensor: Tensor, to: int) -> None:
        """See `Communicator`."""
        self.begin_send(tensor, to)()

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """See `Communicator`."""
        buffers = [tensor.contiguous()]
        work = self._group.send(buffers, to, 0)

        def ended() -> None:
            work.wait()
            buffers.clear()  # Until then it keeps the tensor.

        return ended

    def receive(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        self._group.recv([tensor], source, 0).wait()

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        """See `Communicator`."""
        arrival: Arrival = self._group.recv([tensor], source, 0)
        return arrival


def join(
    meeting: Path, rank: int, size: int, device: torch.device, *, in_order: bool = False
) -> HostRanks | Nccl:
    """Initialize the process group; returns when all ranks have joined.

    Args:
        meeting: a file that does not exist yet, in a directory private to this user.
        rank: rank of this process, from 0.
        size: number of ranks.
        device: device of this rank.
        in_order: sums on GPUs are taken in the order of ranks, as they always are on CPUs.
    """
    if device.type == "cuda":
        return Nccl(meeting, rank, size, in_order=in_order)
    return HostRanks(meeting, rank, size)
