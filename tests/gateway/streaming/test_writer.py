"""The payloads of a stream come from its transcript in order, and its source is always closed."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterable

from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.streaming.writer import payloads


class Letters:
    """Two payloads for each delta."""

    def opening(self, started: Started) -> Iterable[bytes]:
        return (b"opening %d" % len(started.prompts),)

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        return (delta.text.encode(), b"!") if delta.text else ()

    def closing(self) -> Iterable[bytes]:
        return (b"closing",)


class Source:
    def __init__(self) -> None:
        self.closed = False

    async def deltas(self) -> AsyncGenerator[OutputDelta, None]:
        try:
            for text in ("a", "", "b"):
                yield OutputDelta(0, text, array("i"))
        finally:
            self.closed = True


STARTED = Started((PackedTokens.of([1]),))


def test_opening_deltas_closing() -> None:
    async def main() -> list[bytes]:
        return [part async for part in payloads(Letters(), STARTED, Source().deltas())]

    assert asyncio.run(main()) == [b"opening 1", b"a", b"!", b"b", b"!", b"closing"]


def test_closing_early_closes_the_source() -> None:
    async def main() -> None:
        source = Source()
        parts = payloads(Letters(), STARTED, source.deltas())
        assert [await anext(parts), await anext(parts)] == [b"opening 1", b"a"]
        await parts.aclose()
        assert source.closed

    asyncio.run(main())
