"""Shared memory that outlives the processes that use it: packed weights and KV pages on a CPU.

    worker                                   keeper, a thread of the supervisor
      | -- take, digest ------------------->  |
      | <- the segment with these contents -  |   or nothing: the worker creates one
      | -- keep, digest, a segment -------->  |   for the next worker
      | -- drop, digest ------------------->  |   it is not needed any more

A segment is a sealed `memfd`: no process can write to it, resize it or unseal it, and its name is
the digest of its contents. So there are neither partial segments nor segments of another model. It
has no file: the kernel frees it with the last process that has it, even after `kill -9`.

Memory that a worker writes is leased: one process has it at a time. The next one with the same name
gets it unchanged if it has the same `key` and the last one did not crash
(`baton.process.exit_status`).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

from baton.logs import logger
from baton.net.discovery import socket_path
from baton.net.topology import Link
from baton.process.exit_status import died_inside
from baton.process.leases import Leases
from baton.process.local_server import LocalServer, peer_of

_ADD_SEALS, _GET_SEALS = 1033, 1034
"""Linux only: elsewhere Python defines neither these nor the seals, and nothing is shared."""
SEALS = 0b1111
"""Seals against further seals, resizing and writing."""
_DIGEST_BYTES = 32
_LONGEST = 128
"""Bytes of a request."""
_TAKE, _KEEP, _DROP = b"take", b"keep", b"drop"
_COUNT, _LEASE, _PAGES = b"size", b"room", b"page"
_FRESH, _AS_LEFT = b"\x01", b"\x02"
_LEASE_SIZES = struct.Struct("<QQ")
_LEASE_SEALS = 0b0111
"""Seals against resizing of mapped segments."""
_SECONDS = 5.0
"""Time limit of one exchange."""
_SHARE = 0.5
"""Share of the machine's memory for segments: if contents differed at each start, they would
accumulate."""

log = logger(__name__)


def digest(contents: memoryview) -> bytes:
    """Digest of a segment with these contents."""
    return blake2b(contents, digest_size=_DIGEST_BYTES).digest()


def make(contents: memoryview) -> int:
    """Copy bytes into a new sealed segment; returns its descriptor. Raises `OSError`."""
    descriptor = os.memfd_create("baton-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        written = 0
        while written < len(contents):
            written += os.pwrite(descriptor, contents[written:], written)
        fcntl.fcntl(descriptor, _ADD_SEALS, SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_sealed(descriptor: int, size: int) -> bool:
    """Whether it is a sealed segment of this size."""
    try:
        seals = fcntl.fcntl(descriptor, _GET_SEALS)
    except OSError:  # Not a memfd.
        return False
    return seals & SEALS == SEALS and os.fstat(descriptor).st_size == size


def _path(run_dir: Path) -> str:
    link = Link("segments", "supervisor", "worker", (), ())
    return socket_path(run_dir, link).removeprefix("ipc://")


def _writable(size: int) -> int:
    """The descriptor of zeroed memory whose size cannot change. Raises `OSError`."""
    descriptor = os.memfd_create("baton-lease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, _ADD_SEALS, _LEASE_SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class SegmentKeeper(LocalServer):
    """Server side: keeps segments for processes of the same user. Life cycle: a context."""

    def __init__(self, run_dir: Path, limit: int | None = None) -> None:
        """`limit`: maximum bytes of all segments; None means half of the machine's memory."""
        super().__init__("segments", _path(run_dir), socket.SOCK_SEQPACKET, _SECONDS)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._limit = int(memory * _SHARE) if limit is None else limit
        self._segments: dict[bytes, int] = {}
        self._bytes = 0
        self._leases = Leases[int](_writable, os.close)
        self._lock = threading.Lock()
        """Lock of the leases: another thread reports exited processes, which also ends leases."""

    def __enter__(self) -> Self:
        if not hasattr(os, "memfd_create"):
            return self
        self.listen()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.stop()
        for descriptor in self._segments.values():
            os.close(descriptor)
        self._segments.clear()
        self._leases.close()

    def process_died(self, pid: int, code: int) -> None:
        """Drop the leases of a process that crashed: it may have written anything. The finished
        writes of a killed process are intact."""
        if died_inside(code):
            with self._lock:
                self._leases.end_of(pid)

    def end_lease(self, name: str) -> None:
        """Drop the leases of the process of this name: they are not needed any more."""
        with self._lock:
            self._leases.end(_name_digest(name))

    def serve(self, peer: socket.socket) -> None:
        """See `LocalServer`."""
        request, descriptors, _, _ = socket.recv_fds(peer, _LONGEST, 1)
        verb, name = request[: len(_TAKE)], request[len(_TAKE) :]
        pid, user = peer_of(peer)
        if user != os.geteuid():
            log.warning("refused a segment to a process of another user")
        elif verb == _TAKE and name in self._segments:
            socket.send_fds(peer, [b"\x01"], [self._segments[name]])
            return
        elif verb == _COUNT:
            peer.send(struct.pack("<Q", self._bytes))
            return
        elif verb == _PAGES:
            with self._lock:
                peer.send(struct.pack("<Q", self._leases.most_pages()))
            return
        elif verb == _LEASE:
            with self._lock:
                answer, descriptor = self._lease(name, pid)
                socket.send_fds(peer, [answer], [descriptor])
            return
        elif verb == _DROP:
            peer.send(b"\x01" if self._drop(name) else b"\x00")
            return
        elif verb == _KEEP and descriptors:
            peer.send(b"\x01" if self._keep(name, descriptors.pop()) else b"\x00")
            return
        for descriptor in descriptors:
            os.close(descriptor)
        peer.send(b"\x00")

    def _lease(self, request: bytes, pid: int) -> tuple[bytes, int]:
        """Whether the memory is fresh, and its descriptor."""
        name, key = request[:_DIGEST_BYTES], request[_DIGEST_BYTES : 2 * _DIGEST_BYTES]
        size, num_pages = _LEASE_SIZES.unpack(request[2 * _DIGEST_BYTES :])
        lease, as_left = self._leases.acquire(name, key, size, num_pages, pid)
        return _AS_LEFT if as_left else _FRESH, lease.memory

    def _keep(self, name: bytes, descriptor: int) -> bool:
        size = os.fstat(descriptor).st_size
        fits = len(name) == _DIGEST_BYTES and self._bytes + size <= self._limit
        if name in self._segments or not fits or not is_sealed(descriptor, size):
            os.close(descriptor)
            return name in self._segments
        self._segments[name] = descriptor
        self._bytes += size
        return True

    def _drop(self, name: bytes) -> bool:
        """Drop a segment. Returns whether it existed. Processes that have mapped it keep it."""
        descriptor = self._segments.pop(name, None)
        if descriptor is None:
            return False
        self._bytes -= os.fstat(descriptor).st_size
        os.close(descriptor)
        return True


class Segments:
    """Client side; every call opens a connection."""

    def __init__(self, run_dir: Path) -> None:
        self._address = _path(run_dir)

    def held_bytes(self) -> int | None:
        """Bytes of all segments of the keeper; None without a keeper."""
        try:
            return int(struct.unpack("<Q", self._call(_COUNT)[0])[0])
        except (OSError, struct.error):
            return None

    def leased_pages(self) -> int:
        """KV pages leased by a worker of this host; 0 if there are none."""
        try:
            return int(struct.unpack("<Q", self._call(_PAGES)[0])[0])
        except (OSError, struct.error):
            return 0

    def lease(self, name: str, key: bytes, size: int, num_pages: int) -> tuple[int, bool]:
        """Lease memory of `size` bytes for the process of this name. Returns its descriptor, and
        whether it has the last process's content; otherwise it is zeroed. Raises `OSError`.

        Args:
            name: of the worker.
            key: digest of everything that determines the meaning of the bytes.
            num_pages: KV pages in it.
        """
        sizes = _LEASE_SIZES.pack(size, num_pages)
        answer, descriptors = self._call(_LEASE + _name_digest(name) + key + sizes)
        if not descriptors:
            raise OSError("the supervisor gives none")
        return descriptors[0], answer == _AS_LEFT

    def take(self, name: bytes) -> int | None:
        """The descriptor of the segment with this digest; None if there is none. Raises
        `OSError`."""
        descriptors = self._call(_TAKE + name)[1]
        return descriptors[0] if descriptors else None

    def keep(self, name: bytes, descriptor: int) -> bool:
        """Give a segment to the keeper; it stays open here. False if the keeper has no room. Raises
        `OSError`."""
        return self._call(_KEEP + name, (descriptor,))[0] == b"\x01"

    def drop(self, name: bytes) -> bool:
        """Drop a segment from the keeper; a process that has mapped it keeps it. False if there is
        none, or no keeper."""
        try:
            return self._call(_DROP + name)[0] == b"\x01"
        except OSError:
            return False

    def _call(
        self, request: bytes, sent_descriptors: tuple[int, ...] = ()
    ) -> tuple[bytes, list[int]]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(_SECONDS)
            peer.connect(self._address)
            socket.send_fds(peer, [request], sent_descriptors)
            answer, descriptors, _, _ = socket.recv_fds(peer, 8, 1)
        return answer, descriptors


def _name_digest(name: str) -> bytes:
    """Digest of a process's name."""
    return digest(memoryview(name.encode()))
