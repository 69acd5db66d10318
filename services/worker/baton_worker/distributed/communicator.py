"""What the ranks of one model say to each other while they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Communicator(Protocol):
    """Collective operations: every rank calls them in the same order, with equal shapes."""

    @property
    def rank(self) -> int:
        """This process, counted from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on each of them. `tensor` may be overwritten."""
        ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """What each rank has given, in the order of ranks."""
        ...

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """`all_gather` that goes on while this rank computes; ends when what is returned is called,
        and `tensor` is not to change until then. No other operation begins before that."""
        ...

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        """The sum of what all ranks give for this one; `parts` has one summand for each rank."""
        ...

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """Give each rank of `among`, which has this one, its part, and get what each of them gives
        this one. All ranks call it, in groups that have none in common; parts have one shape."""
        ...

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Fill `tensor` with what it holds on rank `source`."""
        ...

    def send(self, tensor: Tensor, to: int) -> None:
        """Give a tensor to one rank, which calls `receive`; returns when it may be overwritten."""
        ...

    def receive(self, tensor: Tensor, source: int) -> None:
        """Fill `tensor` with what rank `source` sends."""
        ...


class SingleRank:
    """A model that is not cut."""

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
        raise AssertionError("there is nobody to send to")

    def receive(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        raise AssertionError("there is nobody to receive from")


def numbers(ranks: Communicator, mine: int, device: torch.device) -> list[int]:
    """An integer of each rank, in the order of ranks, on all of them."""
    gathered = ranks.all_gather(torch.tensor([mine], dtype=torch.int64, device=device))
    return [int(number) for number in gathered]
