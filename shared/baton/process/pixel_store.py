"""Pixels in shared memory: one process owns them, others of the same host read them by a handle.

    gateway                                  worker, encode worker
      | reserve, put: a sealed memfd, named by a secret
      | <- take, secret ------------------------ |
      | -- its descriptor ---------------------> |   mapped read-only
      | drop: the request has ended              |

A memfd has no file: the kernel frees it with the last process that has it, even after `kill -9`.
The owner is the gateway that serves the request, so pixels live exactly as long as the request; a
worker that has mapped them keeps them for as long as it needs them.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import threading
from pathlib import Path

from baton.errors import Unavailable
from baton.logs import logger
from baton.process.local_server import LocalServer, is_own_user
from baton.process.segments import is_sealed, make

SHARES_MEMORY = hasattr(os, "memfd_create")
"""Linux constant; see memfd_create(2)."""
TOKEN_BYTES = 16
_SECONDS = 5.0
"""Time limit of one exchange."""
_FOUND = b"\x01"
_NOTHING_YET = -1

log = logger(__name__)


class PixelsGone(OSError):
    """The pixels of a handle do not exist any more."""


class PixelStore(LocalServer):
    """Owner's side. Life cycle: `start`; `reserve`, `put` and `drop` from any thread; `close`.

    Args:
        run_dir: contains its socket.
        max_bytes: limit of all pixels together.
    """

    def __init__(self, run_dir: Path, max_bytes: int) -> None:
        self.address = str(run_dir / f"pixels-{os.getpid()}.sock")
        super().__init__("pixels", self.address, socket.SOCK_SEQPACKET, _SECONDS)
        self._max_bytes, self.num_bytes = max_bytes, 0
        self.remote = ""
        """Address at which other hosts fetch pixels; empty if they cannot."""
        self._pixels: dict[bytes, tuple[int, int]] = {}
        """Token -> descriptor and size."""
        self._lock = threading.Lock()
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.listen()

    def __len__(self) -> int:
        return len(self._pixels)

    def reserve(self, size: int) -> bytes:
        """Reserve memory for pixels of `size` bytes. Returns their token, for `put` and `drop`.

        Raises:
            Unavailable: shared memory is full of other requests' pixels.
        """
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._lock:
            if self.num_bytes + size > self._max_bytes:
                raise Unavailable(
                    "Images of other requests take all the memory for pixels. Try again.",
                    code="server_is_overloaded",
                    retry_after=1,
                )
            self.num_bytes += size
            self._pixels[token] = (_NOTHING_YET, size)
        return token

    def put(self, token: bytes, pixels: bytes) -> None:
        """Copy pixels into shared memory, unless their token was dropped meanwhile. Raises
        `OSError`."""
        descriptor = make(memoryview(pixels))
        with self._lock:
            if token in self._pixels:
                self._pixels[token] = (descriptor, len(pixels))
                return
        os.close(descriptor)

    def read(self, token: bytes) -> bytes:
        """A copy of the pixels; empty if there are none."""
        with self._lock:
            descriptor, size = self._pixels.get(token, (_NOTHING_YET, 0))
            return b"" if descriptor == _NOTHING_YET else os.pread(descriptor, size, 0)

    def drop(self, token: bytes) -> None:
        """Free pixels; a process that has mapped them keeps them. Unknown tokens are ignored."""
        with self._lock:
            entry = self._pixels.pop(token, None)
            if entry is not None:
                self.num_bytes -= entry[1]
                if entry[0] != _NOTHING_YET:
                    os.close(entry[0])

    def close(self) -> None:
        """Free all pixels."""
        self.stop()
        for token in list(self._pixels):
            self.drop(token)

    def serve(self, peer: socket.socket) -> None:
        """See `LocalServer`."""
        token = peer.recv(TOKEN_BYTES)
        if not is_own_user(peer):
            log.warning("refused pixels to a process of another user")
            return
        with self._lock:  # A descriptor number that is closed now could be reused for another file.
            entry = self._pixels.get(token)
            if entry is not None and entry[0] != _NOTHING_YET:
                socket.send_fds(peer, [_FOUND], [entry[0]])


def take(address: str, token: bytes, size: int) -> mmap.mmap:
    """The pixels of a handle, mapped read-only.

    Raises:
        PixelsGone: their owner has exited or has freed them.
        OSError: they are not `size` sealed bytes.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(_SECONDS)
        try:
            peer.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise PixelsGone("their owner is gone, or on another host") from error
        try:
            peer.send(token)
            _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
        except ConnectionError as error:
            raise PixelsGone("their owner has ended") from error
    if not descriptors:
        raise PixelsGone("their owner has let them go")
    try:
        if not is_sealed(descriptors[0], size):
            raise OSError(f"they are not {size} sealed bytes")
        return mmap.mmap(descriptors[0], size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptors[0])
