"""Child process that matches the patterns of an adapter_config.json; see `baton.process.sandbox`.

Python matches some regular expressions in exponential time, and no other thread of its process
runs meanwhile. A request is a list of patterns and one of names, its answer a list of what
`first_matches` returns, or why a pattern is none, both in MessagePack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from baton.process.sandbox import Handler, limit_memory, main

MEMORY = 256 * 1024**2
"""Address space in bytes, on top of the interpreter's."""


def first_matches(patterns: Sequence[str], modules: Iterable[str]) -> list[int | None]:
    """For each module, the index of the first pattern that matches the end of its name, as in peft.

    Raises `re.error` for a pattern that is no regular expression.
    """
    compiled = [re.compile(rf"(.*\.)?({pattern})$") for pattern in patterns]
    return [next((i for i, p in enumerate(compiled) if p.match(m)), None) for m in modules]


def build(setup: bytes) -> Handler:
    """Return the handler."""
    limit_memory(MEMORY)

    def handle(request: bytes) -> bytes:
        patterns, modules = msgspec.msgpack.decode(request, type=tuple[list[str], list[str]])
        answer: list[int | None] | str
        try:
            answer = first_matches(patterns, modules)
        except (re.error, OverflowError, RecursionError) as error:
            answer = str(error)
        return msgspec.msgpack.encode(answer)

    return handle


if __name__ == "__main__":
    main(build)
