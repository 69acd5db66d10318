"""Ranks that are threads of one process: for what needs no processes to be tested."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from queue import Queue
from threading import Barrier
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from baton_worker.distributed.communicator import Arrival

T = TypeVar("T")
Mail: TypeAlias = dict[tuple[int, int], Queue[Tensor]]
"""Tensors on their way from one rank to another."""


class Threaded:
    """A `Communicator` over memory that all ranks see."""

    def __init__(
        self,
        rank: int,
        size: int,
        shared: list[Any],
        barrier: Barrier,
        mail: Mail | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._shared, self._barrier, self._mail = shared, barrier, mail or {}

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        self._shared[self.rank] = tensor.clone()
        self._barrier.wait()
        parts = list(self._shared)
        self._barrier.wait()
        return parts

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        return lambda: self.all_gather(tensor)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.all_gather(tensor)).sum(0)

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        self._shared[self.rank] = [part.clone() for part in parts]
        self._barrier.wait()
        total = torch.stack([given[self.rank] for given in self._shared]).sum(0)
        self._barrier.wait()
        return total

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        self._shared[self.rank] = [part.clone() for part in parts]
        self._barrier.wait()
        got = [self._shared[rank][among.index(self.rank)] for rank in among]
        self._barrier.wait()
        return got

    def broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self.all_gather(tensor)[source])

    def send(self, tensor: Tensor, to: int) -> None:
        self._mail[self.rank, to].put(tensor.clone())

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        raise NotImplementedError

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        raise NotImplementedError

    def receive(self, tensor: Tensor, source: int) -> None:
        sent = self._mail[source, self.rank].get(timeout=60)
        assert sent.shape == tensor.shape and sent.dtype == tensor.dtype
        tensor.copy_(sent)


def together(size: int, part: Callable[[Threaded], T]) -> list[T]:
    """What each rank returns, in the order of ranks."""
    shared, barrier = [None] * size, Barrier(size, timeout=60)
    mail: Mail = {pair: Queue() for pair in product(range(size), range(size))}

    def run(rank: int) -> T:
        try:
            with torch.inference_mode():
                return part(Threaded(rank, size, shared, barrier, mail))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
