"""Child side of `baton.process.child_pool`: a process that handles untrusted input.

It reads one setup frame from standard input, confirms it, then answers one frame after the other,
until its parent closes the pipe. The parent may kill it at any time and limits its time; it limits
its own memory.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from baton.net import frames

Handler: TypeAlias = Callable[[bytes], bytes]
"""Returns the answer to one request."""


def limit_memory(num_bytes: int) -> None:
    """Limit the address space to `num_bytes` more than now, and disable core dumps, which would
    contain client data. Call it once the libraries are loaded."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes, used + num_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(source: IO[bytes], target: IO[bytes], build: Callable[[bytes], Handler]) -> None:
    """Build a handler from the first frame, confirm with an empty one, and answer the others."""
    setup = frames.receive(source)
    if setup is None:
        return
    handler = build(setup)
    frames.send(target, b"")
    while (request := frames.receive(source)) is not None:
        frames.send(target, handler(request))


def main(build: Callable[[bytes], Handler]) -> None:
    """Serve the parent of this process."""
    serve(sys.stdin.buffer, sys.stdout.buffer, build)
