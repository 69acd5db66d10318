"""The process that holds memory of one GPU for workers, so that it outlives them.

It runs no kernel and knows no model. Memory is freed when no worker leases it any more and no
process that has it open is left: freeing memory that another process has open is undefined.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import msgspec

from baton.logs import logger
from baton.process.leases import Leases
from baton.process.lifecycle import Lifecycle
from baton.process.local_server import LocalServer, peer_of
from baton_worker.device_keeper.driver import DeviceDriver, DeviceError
from baton_worker.device_keeper.messages import (
    LONGEST,
    Answer,
    Done,
    Drop,
    Find,
    Found,
    Lease,
    Leased,
    Leave,
    Refused,
    Request,
    address,
)

_SECONDS = 60.0
"""Longest wait for the other side."""
_SWEEP_SECONDS = 0.2
"""Interval of the checks for processes that have ended."""
_LEAVING_SECONDS = 4.0
"""Time limit for workers that end with it."""

log = logger(__name__)


@dataclass
class _Block:
    """One allocation."""

    address: int
    size: int
    handle: bytes
    generation: bytes = field(default_factory=lambda: uuid4().bytes)
    checksum: int | None = None
    users: dict[int, int] = field(default_factory=dict)
    """By process id, a descriptor that is readable once the process has ended."""

    def use(self, pid: int) -> None:
        """A process opens the memory. Raises `OSError` if it has ended."""
        if pid not in self.users:
            self.users[pid] = os.pidfd_open(pid)

    def leave(self, pid: int) -> None:
        """A process has closed the memory, or ended."""
        if (descriptor := self.users.pop(pid, None)) is not None:
            os.close(descriptor)

    def in_use(self) -> bool:
        """Whether a process that has opened the memory is left."""
        for pid, descriptor in list(self.users.items()):
            if select.select([descriptor], [], [], 0)[0]:
                self.leave(pid)
        return bool(self.users)


class DeviceKeeper(LocalServer):
    """Serves the workers of one GPU. Life cycle: `listen`, `start`, `sweep` periodically,
    `close`."""

    def __init__(self, run_dir: Path, gpu: int, driver: DeviceDriver) -> None:
        path = address(run_dir, gpu)
        super().__init__("GPU memory", path, socket.SOCK_SEQPACKET, _SECONDS)
        self._driver, self._lock = driver, threading.Lock()
        self._leases = Leases[_Block](self._make, self._retire)
        self._retired = list[_Block]()
        """No worker leases these any more, and processes may have them open."""

    def serve(self, peer: socket.socket) -> None:
        """See `LocalServer`."""
        pid, user = peer_of(peer)
        if not (message := peer.recv(LONGEST)):  # The peer reads only the id of this process.
            return
        answer: Answer = Refused("the process is of another user")
        if user == os.geteuid():
            request = msgspec.msgpack.decode(message, type=Request)
            with self._lock:
                answer = self._answer(request, pid)
        peer.send(msgspec.msgpack.encode(answer))

    def _answer(self, request: Request, pid: int) -> Answer:
        if isinstance(request, Lease):
            return self._lease(request, pid)
        if isinstance(request, Find):
            return self._find(request.name.encode())
        if isinstance(request, Leave):
            self._leave(request.generation, pid)
        elif isinstance(request, Drop):
            self._leases.end(request.name.encode())
        elif (lease := self._leases.find(request.name.encode())) is not None:
            lease.memory.checksum = request.checksum
        self._free_unused()
        return Done()

    def _lease(self, request: Lease, pid: int) -> Answer:
        name = request.name.encode()
        try:
            arguments = (name, request.key, request.size, request.num_pages, pid)
            lease, as_left = self._leases.acquire(*arguments)
            lease.memory.use(pid)
        except (DeviceError, OSError) as error:
            return Refused(str(error))
        block = lease.memory
        return Leased(block.handle, block.generation, as_left, block.checksum)

    def _find(self, name: bytes) -> Found:
        if (lease := self._leases.find(name)) is None:
            return Found()
        block = lease.memory
        return Found(block.generation, lease.size, lease.num_pages, block.checksum is not None)

    def _leave(self, generation: bytes, pid: int) -> None:
        for block in [*self._retired, *self._leases.memories()]:
            if block.generation == generation:
                block.leave(pid)

    def _make(self, size: int) -> _Block:
        self._free_unused()
        start = self._driver.allocate(size)
        try:
            handle = self._driver.export(start)
        except DeviceError:
            self._driver.free(start)
            raise
        log.info("%d MiB of the GPU are held for workers", size >> 20)
        return _Block(start, size, handle)

    def _retire(self, block: _Block) -> None:
        self._retired.append(block)

    def _free_unused(self) -> None:
        for block in [block for block in self._retired if not block.in_use()]:
            self._retired.remove(block)
            self._driver.free(block.address)
            log.info("%d MiB of the GPU are free again", block.size >> 20)

    def sweep(self) -> None:
        """Free what was used by processes that have ended."""
        with self._lock:
            self._free_unused()

    def in_use(self) -> bool:
        """Whether a worker has memory open."""
        with self._lock:
            blocks = [*self._retired, *self._leases.memories()]
            return any([block.in_use() for block in blocks])

    def close(self) -> None:
        """End the thread. The driver frees the memory with the process."""
        self.stop()
        for block in [*self._retired, *self._leases.memories()]:
            for pid in list(block.users):
                block.leave(pid)


def keep(keeper: DeviceKeeper, life: Lifecycle) -> None:
    """Serve until the process should end, and until workers that end with it have done so."""
    keeper.listen()
    keeper.start()
    try:
        while not life.draining:
            keeper.sweep()
            time.sleep(_SWEEP_SECONDS)
        deadline = time.monotonic() + _LEAVING_SECONDS
        while keeper.in_use() and time.monotonic() < deadline:
            time.sleep(_SWEEP_SECONDS)
    finally:
        keeper.close()
