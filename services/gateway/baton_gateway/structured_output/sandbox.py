"""Child process that compiles untrusted grammars; the parent may kill it at any time.

Reads grammars from standard input and writes one verdict each. A message is its length followed by
MessagePack. This process limits its memory; its parent,
`baton_gateway.structured_output.validator`, limits its time.
"""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from baton.protocol import Grammar
from baton.structured_output.engines import TRIALS
from baton.structured_output.llguidance import Problem

MEMORY = 1024**3
"""Address space in bytes, on top of the engine's libraries."""
LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()


def read(stream: BinaryIO) -> bytes | None:
    """Return the next message, or None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return stream.read(*LENGTH.unpack(head))


def frame(message: Grammar | Problem | None) -> bytes:
    """Return a message with its length prefix."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)) + data


def limit() -> None:
    """Limit the address space to `MEMORY` more than now, and disable core dumps of client data."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(source: BinaryIO, target: BinaryIO, problem: Callable[[Grammar], Problem | None]) -> None:
    """Compile grammars one by one until the parent closes the pipe."""
    while (data := read(source)) is not None:
        verdict = problem(msgspec.msgpack.decode(data, type=Grammar))
        target.write(frame(verdict))
        target.flush()


if __name__ == "__main__":
    tries = TRIALS.load(sys.argv[1])
    limit()
    serve(sys.stdin.buffer, sys.stdout.buffer, tries)
