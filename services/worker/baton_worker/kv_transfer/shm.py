"""Blocks in memory shared by two processes of one host.

The transfer buffer is a `memfd`: it has no name, so other processes cannot open it, and the kernel
frees it with the last process that holds it, even after a crash. The target receives the descriptor
over a Unix socket in the run directory (mode 0700) in exchange for a random 16-byte ticket, part of
the connection's terms. The memory is sealed: its size cannot change, so reads cannot fault.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import socket
from pathlib import Path
from typing import Literal

import numpy as np

from baton.logs import logger
from baton.net.discovery import socket_path
from baton.net.topology import Link
from baton.process.local_server import LocalServer, is_own_user
from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer.transport import (
    Bytes,
    Size,
    TransportError,
    UnusableError,
)

_TICKET_BYTES = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_TIMEOUT_SECONDS = 2.0
"""Timeout of the descriptor handshake."""

log = logger(__name__)


class Shm:
    """Needs Linux and a run directory visible to both workers. See `transport.Transport`."""

    reach: Literal["host", "network"] = "host"
    on_device = False

    def __init__(self, config: Config) -> None:
        if not hasattr(os, "memfd_create"):
            raise UnusableError("shared memory between workers needs Linux (memfd_create)")
        self._run_dir = config.run_dir
        _sweep(config.run_dir)
        self._server = DescriptorServer(_path(config.run_dir))
        self._server.start()

    def send(self, size: Size) -> ShmSender:
        """Shared memory for a new connection."""
        return ShmSender(self._server, size)

    def receive(self, terms: bytes, size: Size) -> ShmReceiver:
        """The same memory, mapped read-only. Raises `TransportError`."""
        try:
            return ShmReceiver(self._run_dir, terms, size)
        except (OSError, ValueError) as error:
            raise TransportError(f"its shared memory cannot be had: {error}") from error

    def close(self) -> None:
        """Stop handing out descriptors."""
        self._server.stop()


class ShmSender:
    """The source's end, the only writer."""

    def __init__(self, server: DescriptorServer, size: Size) -> None:
        self._size, self._server = size, server
        self._descriptor = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, size.total)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        mapped = mmap.mmap(self._descriptor, size.total)
        self._memory = np.frombuffer(mapped, np.uint8).reshape(size)
        self._ticket = server.keep(self._descriptor)
        self.terms = self._ticket + Path(server.path).name.encode()

    def view(self, place: int, size: int) -> Bytes:
        """See `transport.Sender`."""
        view: Bytes = self._memory[place, :size]
        return view

    def data(self, place: int, size: int) -> bytes:
        """Empty: the target reads the shared memory."""
        return b""

    def poll(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Unmap; the kernel frees the memory once the target has closed its end too."""
        self._server.forget(self._ticket)
        os.close(self._descriptor)


class ShmReceiver:
    """The target's end, a read-only mapping."""

    def __init__(self, run_dir: Path, terms: bytes, size: Size) -> None:
        descriptor = _ask(run_dir, terms)
        try:
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("it is not sealed")
            if os.fstat(descriptor).st_size != size.total:
                raise ValueError("it has not the size that was told")
            mapped = mmap.mmap(descriptor, size.total, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._memory = np.frombuffer(mapped, np.uint8).reshape(size)

    def take(self, block: Block, place: int) -> Bytes:
        """See `transport.Receiver`."""
        data: Bytes = self._memory[place, : block.size]
        return data

    def close(self) -> None:
        """No effect: the mapping is freed with its last reader."""
        del self._memory


class DescriptorServer(LocalServer):
    """Sends each descriptor once, to a process of the same user that presents its ticket."""

    def __init__(self, path: str) -> None:
        super().__init__("kv-transfer", path, socket.SOCK_STREAM, _TIMEOUT_SECONDS)
        self._descriptors: dict[bytes, int] = {}
        self.listen()

    def keep(self, descriptor: int) -> bytes:
        """Register a descriptor and return its ticket."""
        ticket = secrets.token_bytes(_TICKET_BYTES)
        self._descriptors[ticket] = descriptor
        return ticket

    def forget(self, ticket: bytes) -> None:
        """Invalidate a ticket."""
        self._descriptors.pop(ticket, None)

    def serve(self, peer: socket.socket) -> None:
        """See `LocalServer`."""
        ticket = peer.recv(_TICKET_BYTES)
        if not ticket:  # A probe for a running listener, see `_sweep`.
            return
        descriptor = self._descriptors.pop(ticket, None)
        if descriptor is None or not is_own_user(peer):
            log.warning("refused shared memory to a process that shows no ticket")
            return
        socket.send_fds(peer, [b"\x01"], [descriptor])


def _ask(run_dir: Path, terms: bytes) -> int:
    """Fetch the descriptor that the terms name. Raises `OSError` or `ValueError`.

    The two workers may mount the run directory at different paths, so terms hold a file name only.
    """
    ticket, name = terms[:_TICKET_BYTES], terms[_TICKET_BYTES:].decode()
    if "/" in name:
        raise ValueError(f"{name} is not in the run directory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_TIMEOUT_SECONDS)
        peer.connect(str(run_dir / name))
        peer.sendall(ticket)
        _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
    if not descriptors:
        raise ValueError("the source gives none")
    return descriptors[0]


def _path(run_dir: Path) -> str:
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = Link(f"kv-{os.getpid()}-{secrets.token_hex(3)}", "worker", "worker", (), ())
    return socket_path(run_dir, link).removeprefix("ipc://")


def _sweep(run_dir: Path) -> None:
    """Remove the sockets of killed workers, which have no listener."""
    for path in run_dir.glob("kv-*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # Not ours to remove.
                continue
