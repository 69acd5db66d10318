"""Child process that compiles untrusted grammars; the parent may kill it at any time.

Reads grammars from standard input and writes one verdict each, as frames of MessagePack. This
process limits its memory; its parent, `baton_gateway.structured_output.validator`, limits its time.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from baton.net import frames
from baton.protocol import Grammar
from baton.structured_output.engines import TRIALS
from baton.structured_output.llguidance import Problem

MEMORY = 1024**3
"""Address space in bytes, on top of the engine's libraries."""


def limit() -> None:
    """Limit the address space to `MEMORY` more than now, and disable core dumps of client data."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(source: BinaryIO, target: BinaryIO, problem: Callable[[Grammar], Problem | None]) -> None:
    """Compile grammars one by one until the parent closes the pipe."""
    while (data := frames.receive(source)) is not None:
        verdict = problem(msgspec.msgpack.decode(data, type=Grammar))
        frames.send(target, msgspec.msgpack.encode(verdict))


if __name__ == "__main__":
    tries = TRIALS.load(sys.argv[1])
    limit()
    serve(sys.stdin.buffer, sys.stdout.buffer, tries)
