"""Durable streams: written before they are read, paused without readers, resumed once."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable.journal import StoredStream, StreamRecord, unavailable
from baton_gateway.durable.sqlite import SqliteJournal
from baton_gateway.durable.streams import DurableStream, DurableStreams, ReplayCursor
from baton_gateway.generation.output import Event, OutputDelta, Started
from baton_gateway.generation.request import PriorOutput
from baton_gateway.http.errors import GatewayPartitioned
from tests.support.gateway.counting_transcript import CountingTranscript

TICKET = StreamRecord("s", "chat", b"{}", 0, "tiny", "me", "me", 1, ())
LENGTH = 12


class Source:
    """Deltas of two choices in turn, each a letter; counts who runs them."""

    def __init__(self) -> None:
        self.runs: list[tuple[PriorOutput, ...]] = []
        self.closed = 0
        self.pace = 0.0

    def resume(
        self, ticket: StreamRecord, past: tuple[PriorOutput, ...]
    ) -> AsyncGenerator[Event, None]:
        return self.events(past)

    async def events(self, past: tuple[PriorOutput, ...] = ()) -> AsyncGenerator[Event, None]:
        self.runs.append(past)
        try:
            yield Started(())
            started = sum(len(one.tokens) for one in past)
            for number in range(started, LENGTH):
                await asyncio.sleep(self.pace)
                reason = "length" if number >= LENGTH - 2 else None
                yield OutputDelta(number % 2, chr(97 + number), array("i", [number]), reason=reason)
        finally:
            self.closed += 1


class Failing(SqliteJournal):
    """Cannot be written after the first part."""

    written = 0

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        self.written += 1
        if self.written > 1:
            raise unavailable()
        await super().append(name, epoch, part, done=done)


def run(
    check: Callable[[DurableStreams, Source], Coroutine[Any, Any, None]],
    folder: Path,
    kind: type[SqliteJournal] = SqliteJournal,
    grace: float = 5.0,
) -> None:
    async def main() -> None:
        streams = DurableStreams(kind(Config(journal_path=folder / "journal")), grace)
        await streams.start()
        try:
            await check(streams, Source())
        finally:
            await streams.close()

    asyncio.run(main())


async def begin(streams: DurableStreams, source: Source) -> DurableStream:
    events = source.events()
    await anext(events)
    return await streams.record(TICKET, events)  # type: ignore[arg-type]


async def text(recording: DurableStream, count: int = LENGTH) -> str:
    deltas = recording.deltas(ReplayCursor())
    found = [(await anext(deltas)).text for _ in range(count)]
    await deltas.aclose()
    return "".join(found)


def test_every_reader_gets_everything(tmp_path: Path) -> None:
    async def check(streams: DurableStreams, source: Source) -> None:
        source.pace = 0.005
        recording = await begin(streams, source)
        assert await text(recording, 3) == "abc"
        again = await streams.find("s", "me", source.resume)
        assert again is recording
        assert await asyncio.gather(text(recording), text(recording)) == ["abcdefghijkl"] * 2
        assert await streams.find("s", "you", source.resume) is None
        assert len(source.runs) == 1

    run(check, tmp_path)


def test_a_finished_stream_is_read_and_not_run(tmp_path: Path) -> None:
    async def check(streams: DurableStreams, source: Source) -> None:
        recording = await begin(streams, source)
        async for _ in recording.deltas(ReplayCursor()):
            pass
        found = await streams.find("s", "me", source.resume)
        assert found is not None and found is not recording
        assert (
            "".join([delta.text async for delta in found.deltas(ReplayCursor())]) == "abcdefghijkl"
        )
        assert len(source.runs) == 1 == source.closed

    run(check, tmp_path)


class Slow(SqliteJournal):
    """Nobody can take the stream `s` until somebody has taken another one."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.taken = asyncio.Event()

    async def claim(self, name: str, owner: str) -> StoredStream | None:
        if name == "s":
            await self.taken.wait()
        self.taken.set()
        return await super().claim(name, owner)


def test_one_stream_does_not_wait_for_another_one_to_be_taken(tmp_path: Path) -> None:
    """All streams of a gateway that has died come to another one at the same moment."""

    async def check(streams: DurableStreams, source: Source) -> None:
        async for _ in (await begin(streams, source)).deltas(ReplayCursor()):
            pass
        async with asyncio.timeout(60):
            names = ("s", "s", "other")
            found = await asyncio.gather(*(streams.find(n, "me", source.resume) for n in names))
        assert found[0] is not None and found[1] is not None and found[2] is None

    run(check, tmp_path, Slow)


def test_nobody_reads_and_then_somebody_does(tmp_path: Path) -> None:
    async def check(streams: DurableStreams, source: Source) -> None:
        source.pace = 0.02
        recording = await begin(streams, source)
        assert await text(recording, 3) == "abc"
        while recording.running:
            await asyncio.sleep(0.01)
        assert source.closed == 1
        found = await asyncio.gather(*(streams.find("s", "me", source.resume) for _ in range(3)))
        assert len(set(map(id, found))) == 1 and len(source.runs) == 2, "it is continued once"
        assert found[0] is not None and await text(found[0]) == "abcdefghijkl"
        (first, second) = source.runs[1]
        assert list(first.tokens)[:2] == [0, 2] and list(second.tokens)[:1] == [1]
        assert first.length == len(first.tokens) and not first.ended

    run(check, tmp_path, grace=0.05)


def test_a_gateway_that_is_cut_off_lets_go_of_its_streams_and_takes_none(tmp_path: Path) -> None:
    """Not even one that it has run: somebody else may run it by now."""

    async def main() -> None:
        cut, source = False, Source()
        source.pace = 0.1
        journal = SqliteJournal(Config(journal_path=tmp_path / "journal"))
        streams = DurableStreams(journal, 5.0, lambda: cut)
        await streams.start()
        recording = await begin(streams, source)
        assert await text(recording, 3) == "abc"
        reading = asyncio.create_task(text(recording))
        await asyncio.sleep(0)
        cut = True
        with pytest.raises(GatewayPartitioned):
            await reading
        assert source.closed == 1 and not recording.running
        with pytest.raises(GatewayPartitioned):
            await streams.find("s", "me", source.resume)
        cut, source.pace = False, 0.0
        found = await streams.find("s", "me", source.resume)
        assert found is not None and await text(found) == "abcdefghijkl"
        await streams.close()

    asyncio.run(main())


def test_one_that_is_paused_says_so_to_who_still_waits(tmp_path: Path) -> None:
    async def check(streams: DurableStreams, source: Source) -> None:
        source.pace = 0.05
        recording = await begin(streams, source)
        reading = asyncio.create_task(text(recording))
        await asyncio.sleep(0.08)
        await recording.stop()
        with pytest.raises(Unavailable) as caught:
            await reading
        assert caught.value.code == "stream_paused"

    run(check, tmp_path)


def test_without_its_journal_a_stream_goes_on_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(streams: DurableStreams, source: Source) -> None:
        recording = await begin(streams, source)
        assert await text(recording) == "abcdefghijkl"
        assert caplog.text.count("is not durable from here on") == 1

    run(check, tmp_path, Failing)


def test_what_nobody_can_have_seen_is_not_waited_for(tmp_path: Path) -> None:
    async def check(streams: DurableStreams, source: Source) -> None:
        source.pace = 10.0
        recording = await begin(streams, source)
        place = ReplayCursor()
        place.replaying = True
        with pytest.raises(Exception, match="has not come so far"):
            await anext(recording.deltas(place))

    run(check, tmp_path)


WHOLE = b"<acdefghijkl>"


def test_a_thousand_readers_share_what_one_of_them_encodes(tmp_path: Path) -> None:
    """Some begin before there is anything, others when all is over."""
    counting = CountingTranscript()

    async def check(streams: DurableStreams, source: Source) -> None:
        async def read() -> bytes:
            found = await streams.find("s", "me", source.resume)
            assert found is not None
            return b"".join(
                [part async for part in found.payloads(counting, Started(()), ReplayCursor())]
            )

        source.pace = 0.001
        await begin(streams, source)
        assert await asyncio.gather(*(read() for _ in range(1000))) == [WHOLE] * 1000
        assert (counting.encoded, len(source.runs)) == (LENGTH, 1)
        assert await asyncio.gather(*(read() for _ in range(1000))) == [WHOLE] * 1000
        assert (counting.encoded, len(source.runs)) == (2 * LENGTH, 1)

    run(check, tmp_path)
