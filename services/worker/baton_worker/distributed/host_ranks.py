"""Ranks on the CPUs of one host, which exchange tensors through shared memory.

    rank 0 <== channel of collective operations ==> rank 1
           <== channel of point-to-point tensors ==>        a socket per channel and direction

The sockets lie in the private directory of the group: only processes of this user reach them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from baton_worker.distributed.communicator import Arrival, sum_in_rank_order
from baton_worker.distributed.tensor_channel import Receiver, Sender

_CHANNELS = ("collective", "point to point")
_LINKS = [(channel, way) for channel in _CHANNELS for way in ("up", "down")]
"""Connections of two ranks: each channel to the higher rank and to the lower one."""
_PREFIX = "r-"
"""Of folders of sockets; short, since addresses of sockets are."""


class HostRanks:
    """The constructor returns when all ranks have met. Connections close with the object or the
    process: ranks that wait for this one then raise `ConnectionError`.

    Sums are taken in rank order, in float32, over whole tensors, so that a row's bits do not depend
    on the other rows of a step.

    Args:
        meeting: a file that does not exist yet, in a directory private to this user.
    """

    def __init__(self, meeting: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._senders = dict[tuple[str, int], Sender]()
        self._receivers = dict[tuple[str, int], Receiver]()
        for (other, (channel, way)), connection in _meet(meeting, rank, size).items():
            weakref.finalize(self, connection.close)
            if (way == "up") == (rank < other):
                self._senders[channel, other] = Sender(connection, other)
            else:
                self._receivers[channel, other] = Receiver(connection, other)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `Communicator`."""
        return sum_in_rank_order(self.all_gather(tensor))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Communicator`."""
        return self.begin_all_gather(tensor)()

    def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        """See `Communicator`."""
        return self._begin_exchange([tensor.contiguous()] * self.size, range(self.size))

    def reduce_scatter(self, parts: list[Tensor]) -> Tensor:
        """See `Communicator`."""
        return sum_in_rank_order(self.exchange(parts, range(self.size)))

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """See `Communicator`."""
        return self._begin_exchange([part.contiguous() for part in parts], among)()

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        if self.rank != source:
            self._receivers["collective", source].receive(tensor)
            return
        for other in range(self.size):
            if other != source:
                self._senders["collective", other].send(tensor)

    def send(self, tensor: Tensor, to: int) -> None:
        """See `Communicator`."""
        self._senders["point to point", to].send(tensor)

    def begin_send(self, tensor: Tensor, to: int) -> Callable[[], None]:
        """See `Communicator`. The tensor is in shared memory when this returns."""
        self.send(tensor, to)
        return lambda: None

    def receive(self, tensor: Tensor, source: int) -> None:
        """See `Communicator`."""
        self._receivers["point to point", source].receive(tensor)

    def begin_receive(self, tensor: Tensor, source: int) -> Arrival:
        """See `Communicator`."""
        return self._receivers["point to point", source].expect(tensor)

    def _begin_exchange(self, parts: list[Tensor], among: range) -> Callable[[], list[Tensor]]:
        """Send each rank of `among` its part; the returned function waits for what they send."""
        for rank, part in zip(among, parts, strict=True):
            if rank != self.rank:
                self._senders["collective", rank].send(part)
        mine = parts[among.index(self.rank)]

        def ended() -> list[Tensor]:
            return [mine if rank == self.rank else self._next(mine, rank) for rank in among]

        return ended

    def _next(self, like: Tensor, source: int) -> Tensor:
        return self._receivers["collective", source].receive(torch.empty_like(like))


def _meet(meeting: Path, rank: int, size: int) -> dict[tuple[int, tuple[str, str]], socket.socket]:
    """Connect every rank with every other one; by the other rank and the link."""
    store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
    with (
        _socket_folder(meeting.parent) as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"{folder}/{rank}")
        listener.listen(len(_LINKS) * size)
        store.set(str(rank), f"{folder}/{rank}")
        links = {
            (other, link): _connected(store.get(str(other)).decode(), rank, number)
            for other in range(rank)
            for number, link in enumerate(_LINKS)
        }
        while len(links) < len(_LINKS) * (size - 1):
            connection, _ = listener.accept()
            other, number = connection.recv(2, socket.MSG_WAITALL)
            links[other, _LINKS[number]] = connection
    return links


@contextmanager
def _socket_folder(parent: Path) -> Iterator[str]:
    """A folder that is locked while it is used. Those that no process has locked were left by ranks
    that were killed as they met: they are removed."""
    with ExitStack() as stack:
        with _locked(parent):
            for left in parent.glob(f"{_PREFIX}*"):
                with suppress(BlockingIOError, FileNotFoundError), _locked(left, fcntl.LOCK_NB):
                    shutil.rmtree(left, ignore_errors=True)
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix=_PREFIX))
            stack.enter_context(_locked(Path(folder)))
        yield folder


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    """A lock of a folder, which ends with this process at the latest."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


def _connected(address: str, rank: int, link: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendall(bytes([rank, link]))
    return connection
