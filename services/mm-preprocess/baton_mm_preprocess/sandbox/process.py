"""Sandboxed child process that decodes untrusted files; its parent may kill it at any time.

Reads requests from stdin and writes results to stdout, as frames of MessagePack.
Its memory is limited; its parent, `baton_mm_preprocess.sandbox.pool`, limits its time.
"""

from __future__ import annotations

import resource
import sys
from hashlib import blake2b
from pathlib import Path
from typing import IO

import msgspec

from baton.errors import InvalidRequest
from baton.net import frames
from baton.protocol import Blob
from baton_mm_preprocess.fetch import fetch
from baton_mm_preprocess.image.decode import decode
from baton_mm_preprocess.image.processor import Processor

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
    while (data := frames.receive(source)) is not None:
        outcome = prepare(msgspec.msgpack.decode(data, type=str), setup)
        frames.send(target, _encoder.encode(outcome))


def main() -> None:
    """Read the setup, confirm it, and serve."""
    first = frames.receive(sys.stdin.buffer)
    if first is not None:
        setup = msgspec.msgpack.decode(first, type=Setup)
        limit(setup.memory)
        frames.send(sys.stdout.buffer, _encoder.encode(None))
        serve(sys.stdin.buffer, sys.stdout.buffer, setup)


if __name__ == "__main__":
    main()
