"""Every journal satisfies `baton_gateway.durable.journal.Journal`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton_gateway.durable.journal import Journal, StoredStream, StreamFenced
from tests.gateway.durable.conftest import ticket

Open = Callable[..., Journal]


def test_a_stream_outlives_who_wrote_it(open_one: Open) -> None:
    async def main() -> None:
        one = open_one()
        epoch = await one.create(ticket())
        for part in (b"1", b"22", b"\0" * 9):
            await one.append("s", epoch, part, done=False)
        two = open_one()
        kept = await two.claim("s", "me")
        assert kept == StoredStream(ticket(), (b"1", b"22", b"\0" * 9), False, epoch + 1)
        await two.append("s", kept.epoch, b"4", done=False)
        await two.append("s", kept.epoch, b"", done=True)
        await two.close()
        found = await one.claim("s", "me")
        assert found is not None and found.done
        assert found.parts == (*kept.parts, b"4")
        await one.close()

    asyncio.run(main())


def test_of_two_who_write_only_the_later_one_may(open_one: Open) -> None:
    async def main() -> None:
        one, two = open_one(), open_one()
        first = await one.create(ticket())
        await one.append("s", first, b"1", done=False)
        kept = await two.claim("s", "me")
        assert kept is not None
        for done in (False, True):
            with pytest.raises(StreamFenced):
                await one.append("s", first, b"2", done=done)
        with pytest.raises(StreamFenced):
            await one.append("nowhere", 1, b"2", done=False)
        await two.append("s", kept.epoch, b"3", done=False)
        found = await one.claim("s", "me")
        assert found is not None and found.parts == (b"1", b"3") and not found.done
        await one.close()
        await two.close()

    asyncio.run(main())


def test_nobody_else_sees_a_stream_or_disturbs_it(open_one: Open) -> None:
    async def main() -> None:
        journal = open_one()
        epoch = await journal.create(ticket())
        for name, owner in (("s", "you"), ("s", ""), ("t", "me"), ("", "me")):
            assert await journal.claim(name, owner) is None
        await journal.append("s", epoch, b"1", done=False)
        await journal.close()

    asyncio.run(main())


def test_many_streams_at_once(open_one: Open) -> None:
    async def main() -> None:
        journal = open_one()
        names = [f"s{i}" for i in range(20)]
        for name in names:
            await journal.create(ticket(name))

        async def write(name: str) -> None:
            for number in range(20):
                await journal.append(name, 1, f"{name}:{number}".encode(), done=number == 19)

        await asyncio.gather(*map(write, names))
        for name in names:
            kept = await journal.claim(name, "me")
            assert kept is not None and kept.done
            assert list(kept.parts) == [f"{name}:{number}".encode() for number in range(20)]
        await journal.prune()
        await journal.close()

    asyncio.run(main())


def test_old_streams_are_forgotten(open_one: Open, later: Callable[[float], None]) -> None:
    async def main() -> None:
        journal = open_one(journal_seconds=100.0)
        await journal.create(ticket())
        assert await journal.claim("s", "me") is not None
        later(101.0)
        assert await journal.claim("s", "me") is None
        await journal.prune()
        with pytest.raises(StreamFenced):
            await journal.append("s", 2, b"1", done=False)
        await journal.close()

    asyncio.run(main())
