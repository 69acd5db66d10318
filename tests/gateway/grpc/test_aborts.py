"""What `Abort` may end."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator

from baton_gateway.generation.output import Event, OutputDelta
from baton_gateway.grpc.aborts import Aborts, deltas_until


def test_an_id_belongs_to_its_tenant_and_its_time() -> None:
    ours = Aborts()
    with ours.open("a", "1") as first, ours.open("a", "1") as again, ours.open("b", "1") as other:
        ours.abort("a", "1")
        assert first.is_set() and again.is_set() and not other.is_set()
    ours.abort("b", "1")
    assert not other.is_set()


async def test_deltas_end_with_the_abort_even_while_one_is_awaited() -> None:
    closed = asyncio.Event()

    async def events() -> AsyncGenerator[Event, None]:
        try:
            yield OutputDelta(0, "x", array("i", [1]))
            await asyncio.Event().wait()
        finally:
            closed.set()

    aborted = asyncio.Event()
    found = []
    async for delta in deltas_until(events(), aborted):
        found.append(delta.text)
        asyncio.get_running_loop().call_soon(aborted.set)
    assert found == ["x"] and closed.is_set()


async def test_deltas_end_by_themselves() -> None:
    async def events() -> AsyncGenerator[Event, None]:
        yield OutputDelta(0, "x", array("i", [1]))

    assert [delta.text async for delta in deltas_until(events(), asyncio.Event())] == ["x"]
