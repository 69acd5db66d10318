"""Process groups of torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baton.settings import default_environment
from baton_worker.distributed.communicator import Arrival

_TIMEOUT = timedelta(days=30)
"""Effectively unlimited: a rank may compute for long, and a dead rank closes its connections, which
its peers notice at once."""

_MOMENT = 0.001
"""Seconds that a rank waits when it looks whether a tensor has arrived."""


class _Group:
    """Operations shared by both backends, over one torch process group."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group, self.rank, self.size = group, rank, size

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        self._group.broadcast(tensor, source).wait()

    def send(self, tensor: Tensor, to: int) -> None:
        """See `Communicator`."""
        self.begin_send(tensor, to)()

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """See `Communicator`."""
        given = [tensor.contiguous()]
        work = self._group.send(given, to, 0)

        def ended() -> None:
            work.wait()
            given.clear()  # Until then it keeps the tensor.

        return ended

    def receive(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        self._group.recv([tensor], source, 0).wait()

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        """See `Communicator`."""
        arrival: Arrival = self._group.recv([tensor], source, 0)
        return arrival


class _Awaited:
    """A tensor on its way over gloo, whose works notice only in `wait` that they have ended: a
    thread waits for it."""

    def __init__(self, work: Any, thread: Executor) -> None:
        self._ended = thread.submit(work.wait)

    def is_completed(self) -> bool:
        """See `Arrival`. Waits a moment for it: who asks again and again would take the processor
        from the stage that computes."""
        return bool(wait((self._ended,), timeout=_MOMENT).done)

    def wait(self) -> object:
        """See `Arrival`."""
        return self._ended.result()


class Gloo(_Group):
    """Ranks on CPUs, connected over loopback through a file in a private directory.

    Sums are taken in rank order, in float32, over whole tensors: gloo's all-reduce sums each
    segment in another order, so with three or more ranks a row's result would depend on its
    position in the batch. With two ranks the traffic is the same.
    """

    def __init__(self, meeting: Path, rank: int, size: int) -> None:
        if sys.platform == "linux":
            default_environment("GLOO_SOCKET_IFNAME", "lo")
        store = _store(meeting, size)
        super().__init__(dist.ProcessGroupGloo(store, rank, size, _TIMEOUT), rank, size)
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix="arrivals")

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        """See `Communicator`."""
        return _Awaited(self._group.recv([tensor], source, 0), self._waiting)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Communicator`."""
        return _in_order(self.all_gather(tensor))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Communicator`."""
        return self.begin_all_gather(tensor)()

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """See `Communicator`. Point to point: gloo's own all-gather makes two more copies."""
        return self._passed([tensor.contiguous()] * self.size, range(self.size))

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        """See `Communicator`."""
        return _in_order(self.exchange(parts, range(self.size)))

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """See `Communicator`."""
        return self._passed([part.contiguous() for part in parts], among)()

    def _passed(self, given: list[Tensor], among: range) -> Callable[[], list[Tensor]]:
        """Point-to-point exchange with the ranks `among`: sends `given`, one tensor per rank; the
        returned function waits for what they send."""
        mine = given[among.index(self.rank)]
        parts = [mine if rank == self.rank else torch.empty_like(mine) for rank in among]
        others = [(place, rank) for place, rank in enumerate(among) if rank != self.rank]
        works = [self._group.send([given[place]], rank, 0) for place, rank in others]
        works += [self._group.recv([parts[place]], rank, 0) for place, rank in others]

        def ended() -> list[Tensor]:
            for work in works:
                work.wait()
            return parts

        return ended


class Nccl(_Group):
    """Ranks on the GPUs of one machine, rank r on device r.

    Args:
        in_order: sums are taken in the order of ranks. NCCL's own order depends on the size of a
            message, and so on how many tokens a step has.
    """

    def __init__(self, meeting: Path, rank: int, size: int, *, in_order: bool = False) -> None:
        self._in_order = in_order
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _TIMEOUT
        store = _store(meeting, size)
        super().__init__(dist.ProcessGroupNCCL(store, rank, size, options), rank, size)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Communicator`."""
        if self._in_order:
            return _in_order(self.all_gather(tensor))
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
            return _in_order(self.exchange(parts, range(self.size)))
        parts = [part.contiguous() for part in parts]
        total = torch.empty_like(parts[self.rank])
        self._group.reduce_scatter([total], [parts]).wait()
        return total

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """See `Communicator`. Ranks outside of `among` get and send one number of any value: NCCL
        before 2.13 skips empty messages, and a rank that skips all of them leaves the others
        waiting."""
        beside = parts[0].new_empty((2, self.size, 1))
        given, got = list(beside[0]), list(beside[1])
        for rank, part in zip(among, parts, strict=True):
            given[rank] = part.contiguous()
            got[rank] = torch.empty_like(given[rank])
        self._group.alltoall(got, given).wait()
        return [got[rank] for rank in among]


def _in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype)


def _store(meeting: Path, size: int) -> Any:
    return dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]


def join(
    meeting: Path, rank: int, size: int, device: torch.device, *, in_order: bool = False
) -> Gloo | Nccl:
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
    return Gloo(meeting, rank, size)
