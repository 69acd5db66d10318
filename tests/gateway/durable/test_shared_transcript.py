"""A thousand readers of one stream: encoded once, written in turns."""

from __future__ import annotations

import asyncio
from array import array

from baton_gateway.durable.shared_transcript import BURST, SharedTranscript, Turns
from baton_gateway.generation.output import OutputDelta, Started
from tests.support.gateway.counting_transcript import CountingTranscript


def test_others_have_the_event_loop_between_two_turns() -> None:
    async def main() -> list[int]:
        turns, served, seen = Turns(), [0], []

        async def reader() -> None:
            await turns.take()
            served[0] += 1

        readers = [asyncio.create_task(reader()) for _ in range(1000)]
        while not all(task.done() for task in readers):
            before = served[0]
            await asyncio.sleep(0)
            seen.append(served[0] - before)
        return seen

    seen = asyncio.run(main())
    assert sum(seen) == 1000 and max(seen) <= BURST


def test_a_reader_that_leaves_the_queue_stops_nobody() -> None:
    async def main() -> None:
        turns = Turns()
        tasks = [asyncio.create_task(turns.take()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks[1:])
        await asyncio.wait_for(turns.take(), 60)

    asyncio.run(main())


def test_nothing_is_encoded_twice_or_after_the_end() -> None:
    shared = SharedTranscript(CountingTranscript(), Started(()))
    deltas = [OutputDelta(0, "a", array("i"))] * (BURST + 1)
    assert shared.grow(deltas, complete=True) and len(shared.payloads) == 1 + BURST
    assert shared.grow(deltas, complete=True) and not shared.closed
    assert shared.grow(deltas, complete=True) and shared.closed
    assert not shared.grow(deltas, complete=True)
    assert shared.payloads == [b"<", *[b"a"] * (BURST + 1), b">"]
