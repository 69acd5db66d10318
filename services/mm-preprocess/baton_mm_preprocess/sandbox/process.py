"""Sandboxed child process that decodes untrusted files; its parent may kill it at any time.

Reads requests from stdin and writes results to stdout, each message as its length and MessagePack.
Its memory is limited; its parent, `baton_mm_preprocess.sandbox.pool`, limits its time.
"""

from __future__ import annotations

import resource
import struct
import sys
from hashlib import blake2b
from pathlib import Path
from typing import IO

import msgspec

from baton.errors import InvalidRequest
from baton.protocol import Blob
from baton_mm_preprocess.fetch import fetch
from baton_mm_preprocess.image.decode import decode
from baton_mm_preprocess.image.processor import Processor

LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()


class Setup(msgspec.Struct, frozen=True):
    """First message to a child."""

    processor: Processor
    max_bytes: int
    max_pixels: int
    memory: int


class Problem(msgspec.Struct, frozen=True, tag="problem"):
    """Why a file cannot be used."""

    code: str | None
    message: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A tensor and its 16-byte hash."""

    tensor: Blob
    digest: bytes


Outcome = Ready | Problem


def read(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    data = stream.read(*LENGTH.unpack(head))
    return data if len(data) == LENGTH.unpack(head)[0] else None


def write(stream: IO[bytes], message: object) -> None:
    """A message after its length."""
    data = _encoder.encode(message)
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def prepare(url: str, setup: Setup) -> Outcome:
    """Decode and preprocess one image."""
    try:
        image = decode(fetch(url, setup.max_bytes), setup.max_pixels)
        tensor = setup.processor(image)
    except InvalidRequest as error:
        return Problem(error.code, error.message)
    except MemoryError:
        return Problem(
            "image_too_large",
            "The image needs more memory than this server gives it. Send a smaller one.",
        )
    blob = Blob("float32", tensor.shape, tensor.astype("<f4").tobytes())
    return Ready(blob, digest(blob))


def digest(blob: Blob) -> bytes:
    """16-byte hash of dtype, shape and content."""
    head = _encoder.encode((blob.dtype, blob.shape))
    return blake2b(head + blob.data, digest_size=16).digest()


def limit(memory: int) -> None:
    """Limit further memory to `memory` bytes and disable core files, which would hold client
    data."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(source: IO[bytes], target: IO[bytes], setup: Setup) -> None:
    """Prepare one file after the other until the parent closes the pipe."""
    while (data := read(source)) is not None:
        write(target, prepare(msgspec.msgpack.decode(data, type=str), setup))


def main() -> None:
    """Read the setup, confirm it, and serve."""
    first = read(sys.stdin.buffer)
    if first is not None:
        setup = msgspec.msgpack.decode(first, type=Setup)
        limit(setup.memory)
        write(sys.stdout.buffer, None)
        serve(sys.stdin.buffer, sys.stdout.buffer, setup)


if __name__ == "__main__":
    main()
