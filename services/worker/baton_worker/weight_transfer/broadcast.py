"""Process groups of a trainer and workers, in which the trainer broadcasts weights.

The groups are gloo's and of their own: neither side needs, or touches, the default group of
torch.distributed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from baton.errors import ModelError

TIMEOUT = timedelta(minutes=5)
"""Time limit of a rank for the others to join, or for a tensor."""
_POLL_SECONDS = 0.05
T = TypeVar("T")


class BroadcastGroup:
    """One rank of a group; returns once all ranks have joined.

    Args:
        address: of rank 0, the trainer.
        port: where the store of rank 0 listens.
        rank: of this process.
        size: ranks of the group.

    Raises:
        RuntimeError: not all of them have joined in time.
    """

    def __init__(
        self, address: str, port: int, rank: int, size: int, timeout: timedelta = TIMEOUT
    ) -> None:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address, port, size, rank == 0, timeout, wait_for_workers=False
        )
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        device = dist.ProcessGroupGloo.create_device(hostname=_own_address(address, port))
        options._devices, options._timeout = [device], timeout
        self._store = store
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, options)

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Rank 0: broadcast tensors one after the other. Other ranks receive the same shapes."""
        for tensor in tensors:
            self._group.broadcast(tensor.detach().cpu().contiguous(), 0).wait()

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Any other rank: the next tensor that rank 0 sends."""
        tensor = torch.empty(shape, dtype=dtype)
        self._group.broadcast(tensor, 0).wait()
        return tensor


def _own_address(address: str, port: int) -> str:
    """The address of this host from which another one is reached."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0][0]
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        probe.connect((address, port))  # Nothing is sent.
        return str(probe.getsockname()[0])


class Membership:
    """A worker's place in a group with a trainer; there is none before `join`.

    Args:
        patience: how long it waits for the others to join, or for a tensor.
    """

    def __init__(self, timeout: timedelta = TIMEOUT) -> None:
        self._timeout = timeout
        self._group: BroadcastGroup | None = None
        self._closed = Event()

    def join(self, address: str, port: int, rank: int, size: int) -> None:
        """Join a group in the place of the last one. Raises `ModelError`."""
        self._group = None
        self._group = self._unless_closed(
            lambda: BroadcastGroup(address, port, rank, size, self._timeout)
        )

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next tensor that the trainer broadcasts. Raises `ModelError`."""
        group = self._group
        if group is None:
            raise ModelError(
                "This worker is in no group with a trainer: POST /init_weight_transfer_engine."
            )
        try:
            return self._unless_closed(lambda: group.receive(shape, dtype))
        except ModelError:
            self._group = None  # Its ranks are out of step.
            raise

    def close(self) -> None:
        """Wait no longer."""
        self._closed.set()

    def _unless_closed(self, work: Callable[[], T]) -> T:
        """The result of a call that cannot be cancelled; a daemon thread makes it."""
        done, outcome = Event(), list[Any]()

        def run() -> None:
            try:
                outcome.append(work())
            except (RuntimeError, OSError) as error:
                outcome.append(ModelError(f"The group with the trainer has failed: {error}"))
            done.set()

        Thread(target=run, name="weight broadcast", daemon=True).start()
        while not done.wait(_POLL_SECONDS):
            if self._closed.is_set():
                raise ModelError("This worker ends.")
        [value] = outcome
        if isinstance(value, ModelError):
            raise value
        result: T = value
        return result
