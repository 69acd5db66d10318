"""Collective operations among the ranks of one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Arrival(Protocol):
    """A pending receive of a tensor."""

    def is_completed(self) -> bool:
        """Whether the host has been notified of its arrival."""

    def wait(self) -> object:
        """Wait for it."""


class Communicator(Protocol):
    """Collective operations: every rank calls them in the same order, with equal shapes."""

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, bitwise equal on each. `tensor` may be overwritten."""
        ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of each rank, in rank order."""
        ...

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """Asynchronous `all_gather`; the returned function waits for the result. Until then
        `tensor` must not change and no other operation may start."""
        ...

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        """The sum over all ranks of their part for this one; `parts` has one tensor per rank."""
        ...

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """All-to-all within the ranks `among`, which include this one: send each its part and
        return the parts received. All ranks call it, in disjoint groups; parts have equal shapes.
        """
        ...

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite `tensor` with that of rank `source`."""
        ...

    def send(self, tensor: Tensor, to: int) -> None:
        """Send a tensor to one rank, which calls `receive`; returns once it may be overwritten."""
        ...

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """Asynchronous `send`; the returned function waits until the tensor may be overwritten."""
        ...

    def receive(self, tensor: Tensor, source: int) -> None:
        """Fill `tensor` from rank `source`."""
        ...

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        """Asynchronous `receive`; tensors of one rank arrive in the order of the calls."""
        ...


class SingleRank:
    """The communicator of an unsharded model."""

    rank, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Communicator`."""
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Communicator`."""
        return [tensor]

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """See `Communicator`."""
        return lambda: [tensor]

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        """See `Communicator`."""
        (only,) = parts
        return only

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """See `Communicator`."""
        return parts

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        assert source == 0

    def send(self, tensor: Tensor, to: int) -> None:
        """See `Communicator`."""
        raise AssertionError("a single rank has no peer to send to")

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """See `Communicator`."""
        raise AssertionError("a single rank has no peer to send to")

    def receive(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        raise AssertionError("a single rank has no peer to receive from")

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        """See `Communicator`."""
        raise AssertionError("a single rank has no peer to receive from")


def numbers(ranks: Communicator, mine: int, device: torch.device) -> list[int]:
    """All-gather of one integer per rank, in rank order."""
    gathered = ranks.all_gather(torch.tensor([mine], dtype=torch.int64).to(device))
    return [int(number) for number in gathered]


def sum_in_rank_order(parts: list[Tensor]) -> Tensor:
    """The sum of one tensor per rank, taken in rank order and in float32."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(parts[0].dtype)
