"""A worker's side of the keeper of its GPU: memory that is opened here and lies there."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import weakref
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from baton.logs import logger
from baton.process.local_server import peer_of
from baton_worker.device_keeper.driver import CudaDriver, DeviceDriver, DeviceError
from baton_worker.device_keeper.messages import (
    LONGEST,
    Answer,
    Drop,
    Find,
    Found,
    Lease,
    Leased,
    Leave,
    Refused,
    Request,
    Seal,
    address,
)
from baton_worker.device_keeper.read_rate import LEAST, read_rates

_SECONDS = 60.0
"""Longest wait for the keeper: it zeroes what it allocates."""
_CHECKED = 1 << 28
"""Numbers that are added up at a time."""

log = logger(__name__)
A = TypeVar("A")


class MemoryOpener(Protocol):
    """Opens memory of another process as a tensor."""

    def open(self, handle: bytes, size: int, closed: Any) -> Tensor:
        """uint8 [size]; `closed()` is called when the last tensor of it is gone. Raises
        `DeviceError`."""
        ...


class CudaOpener:
    """See `MemoryOpener`; memory of a GPU."""

    def __init__(self, device: torch.device, driver: DeviceDriver | None = None) -> None:
        self._device = device
        self._driver = driver or CudaDriver(device.index or 0)

    def open(self, handle: bytes, size: int, closed: Any) -> Tensor:
        """See `MemoryOpener`."""
        start = self._driver.open(handle)
        owner = _Opened(start, size)

        def close() -> None:
            self._driver.close(start)
            closed()

        # At the end of the process the driver closes it.
        weakref.finalize(owner, close).atexit = False
        return torch.as_tensor(owner, device=self._device)


class _Opened:
    """Memory of a GPU in the interface that torch reads; torch refers to it while it uses the
    memory."""

    def __init__(self, start: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (start, False),
            "version": 3,
            "strides": None,
        }


class KeptMemory:
    """Memory that this worker leases."""

    def __init__(self, keeper: KeeperClient, name: str, leased: Leased, memory: Tensor) -> None:
        self._keeper, self._name, self._checksum = keeper, name, leased.checksum
        self.memory = memory
        """uint8 [size]."""
        self.generation = leased.generation
        """Differs between any two allocations."""
        self.as_left = leased.as_left
        """Whether it is as the worker before left it; otherwise it is zeros."""

    def seal(self) -> None:
        """Mark the contents as complete and constant."""
        self._keeper.ask(Seal(self._name, checksum(self.memory)))

    @property
    def whole(self) -> bool:
        """Whether it was sealed, and is what it was then."""
        return self._checksum is not None and checksum(self.memory) == self._checksum

    def there(self) -> bool:
        """Whether the name still has this memory."""
        return self._keeper.find(self._name).generation == self.generation

    def drop(self) -> None:
        """Have it freed once no process has it open."""
        self._keeper.drop(self._name)


class KeeperClient:
    """A client of the keeper of a GPU. Every call opens a connection of its own."""

    def __init__(self, run_dir: Path, gpu: int, opener: MemoryOpener) -> None:
        self._address, self._opener = address(run_dir, gpu), opener
        self._watched = False

    @classmethod
    def of(cls, run_dir: Path, device: torch.device) -> KeeperClient | None:
        """The keeper of a device; None where there is none."""
        if device.type != "cuda":
            return None
        client = cls(run_dir, device.index or 0, CudaOpener(device))
        return client if client.exists else None

    @property
    def exists(self) -> bool:
        """Whether there is a keeper."""
        return os.path.exists(self._address) and not isinstance(self.ask(Find("")), Refused)

    def lease(self, name: str, key: bytes, size: int, num_pages: int = 0) -> KeptMemory | None:
        """The memory of a name. None, with a sentence in the log, where there can be none: it is
        then private, as without a keeper."""
        answer = self.ask(Lease(name, key, size, num_pages))
        reason = answer.reason if isinstance(answer, Refused) else ""
        if isinstance(answer, Leased):
            generation = answer.generation
            try:
                memory = self._opener.open(answer.handle, size, lambda: self._leave(generation))
            except (DeviceError, RuntimeError) as error:
                reason = str(error)
                self._leave(generation)
            else:
                if (slow := None if answer.as_left else _slow(memory)) is None:
                    self._watch()
                    return KeptMemory(self, name, answer, memory)
                reason = slow
                del memory
                self.drop(name)
        log.warning("%s of this worker do not outlive it: %s", name.partition(" ")[0], reason)
        return None

    def find(self, name: str) -> Found:
        """The memory of a name."""
        answer = self.ask(Find(name))
        return answer if isinstance(answer, Found) else Found()

    def drop(self, name: str) -> None:
        """Have the memory of a name freed once no process has it open."""
        self.ask(Drop(name))

    def _leave(self, generation: bytes) -> None:
        self.ask(Leave(generation))

    def ask(self, request: Request) -> Answer:
        """Send a request; a keeper that is gone refuses."""
        try:
            with self._connect() as peer:
                peer.send(msgspec.msgpack.encode(request))
                answer: Answer = msgspec.msgpack.decode(peer.recv(LONGEST), type=Answer)
                return answer
        except (OSError, msgspec.DecodeError) as error:
            return Refused(f"the keeper of the GPU does not answer ({error})")

    def _connect(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.settimeout(_SECONDS)
            peer.connect(self._address)
        except OSError:
            peer.close()
            raise
        return peer

    def _watch(self) -> None:
        """End this process with the keeper: the memory goes with that. As by a signal from outside,
        which is no fault of any request."""
        if not self._watched:
            self._watched = True
            with self._connect() as peer:
                keeper = os.pidfd_open(peer_of(peer)[0])
            threading.Thread(target=_end_with, args=(keeper,), daemon=True).start()


def _end_with(keeper: int) -> None:
    select.select([keeper], [], [])
    log.error("the keeper of this GPU has ended, and the memory with it: ending too")
    os.kill(os.getpid(), signal.SIGKILL)


def _slow(memory: Tensor) -> str | None:
    """Why no worker should use this memory, as half a sentence; None if it is as good as own
    memory."""
    if memory.device.type != "cuda" or len(memory) < LEAST:
        return None
    rates = read_rates(memory)
    return None if rates is None else rates.slow


def checksum(memory: Tensor) -> int:
    """The sum of the bytes of memory as numbers of 64 bits, modulo 2^64."""
    numbers = memory[: memory.numel() // 8 * 8].view(torch.int64)
    sums = [int(part.sum()) for part in torch.split(numbers, _CHECKED)]
    return sum(sums) & ((1 << 63) - 1)
