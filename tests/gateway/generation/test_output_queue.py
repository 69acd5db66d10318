"""The output queue is bounded, ordered and complete."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from baton.errors import ServerFault
from baton_gateway.generation.output import OutputDelta
from baton_gateway.generation.output_queue import MAX_QUEUED_DELTAS, OutputQueue


def _delta(choice: int, text: str, reason: str | None = None) -> OutputDelta:
    return OutputDelta(choice, text, array("i", [len(text)]), ends=(1,), reason=reason)


def test_ends_with_the_last_choice() -> None:
    async def main() -> list[OutputDelta]:
        stream = OutputQueue(2)
        for choice in (0, 1):
            stream.put(_delta(choice, "a"))
            stream.put(_delta(choice, "b", "stop"))
        return [delta async for delta in stream]

    assert [(d.choice, d.text) for d in asyncio.run(main())] == [
        (0, "a"), (0, "b"), (1, "a"), (1, "b")
    ]  # fmt: skip


def test_reader_that_lags_gets_everything_in_fewer_deltas() -> None:
    async def main() -> None:
        stream = OutputQueue(3)
        for i in range(1000):
            for choice in range(3):
                stream.put(_delta(choice, f"{i},", "length" if i == 999 else None))
        assert len(stream) <= MAX_QUEUED_DELTAS
        texts, tokens = [""] * 3, [0] * 3
        async for delta in stream:
            texts[delta.choice] += delta.text
            tokens[delta.choice] += len(delta.tokens)
            assert len(delta.ends) == len(delta.tokens)
        assert texts == ["".join(f"{i}," for i in range(1000))] * 3 and tokens == [1000] * 3

    asyncio.run(main())


def test_error_comes_after_what_was_put() -> None:
    async def main() -> None:
        stream = OutputQueue(1)
        stream.put(_delta(0, "a"))
        stream.fail(ServerFault("first"))
        stream.fail(ServerFault("second"))
        assert (await anext(stream)).text == "a"
        with pytest.raises(ServerFault, match="first"):
            await anext(stream)

    asyncio.run(main())


def test_reader_that_waits_is_woken() -> None:
    async def main() -> None:
        stream = OutputQueue(1)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.put(_delta(0, "a", "stop"))
        assert (await waiting).text == "a"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    asyncio.run(main())


class Sink:
    """Takes what it is given while it is open."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.open = True

    def write(self, delta: OutputDelta) -> bool:
        if self.open:
            self.passed.append(delta.text)
        return self.open


def test_what_is_put_while_the_reader_waits_passes_it() -> None:
    async def main() -> None:
        sink, taken = Sink(), list[str]()
        passed = sink.passed
        stream = OutputQueue(1, sink, lambda delta: taken.append(delta.text))
        stream.put(_delta(0, "a"))
        assert (await anext(stream)).text == "a" and not passed  # Nobody waited for it.
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.put(_delta(0, "b"))
        stream.put(_delta(0, "c"))
        sink.open = False
        stream.put(_delta(0, "d"))
        sink.open = True
        stream.put(_delta(0, "e"))  # It must not overtake what the reader has yet to take.
        assert ((await waiting).text, passed) == ("d", ["b", "c"])
        assert (await anext(stream)).text == "e"
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.put(_delta(0, "f", "stop"))
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert passed == ["b", "c", "f"]
        assert taken == ["a", "b", "c", "d", "e", "f"]

    asyncio.run(main())


def test_what_breaks_on_the_way_past_the_reader_ends_its_stream_alone() -> None:
    class Broken:
        def write(self, delta: OutputDelta) -> bool:
            raise KeyError(delta.text)

    async def main() -> None:
        stream = OutputQueue(1, Broken())
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.put(_delta(0, "a"))
        with pytest.raises(ServerFault):
            await waiting

    asyncio.run(main())
