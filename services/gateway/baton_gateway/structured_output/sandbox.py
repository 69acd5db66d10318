"""Child process that compiles untrusted grammars; see `baton.process.sandbox`.

A request is a `Grammar`, its answer a `Problem` or None, both in MessagePack.
"""

from __future__ import annotations

import msgspec

from baton.process.sandbox import Handler, limit_memory, main
from baton.protocol import Grammar
from baton.structured_output.engines import TRIALS

MEMORY = 1024**3
"""Address space in bytes, on top of the engine's libraries."""


def build(setup: bytes) -> Handler:
    """Return the handler of one engine, named by the setup, after a first compilation."""
    problem = TRIALS.load(setup.decode())
    limit_memory(MEMORY)
    problem(Grammar("json_object", ""))

    def handle(request: bytes) -> bytes:
        return msgspec.msgpack.encode(problem(msgspec.msgpack.decode(request, type=Grammar)))

    return handle


if __name__ == "__main__":
    main(build)
