"""Connections and pools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton.net.handshake import incarnation
from baton.net.topology import FRONTEND
from baton.protocol import Beat, Hello, HelloRequest, Message
from baton_gateway.clients.connection import Connection, Pool, wait_until
from tests.fakes.gateway_engine import FakeChannel, FakeScheduler

ME = Hello("gateway", "g", incarnation(), "0")


class Diary:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.broken = False

    async def joined(self, connection: Connection) -> None:
        self.events.append("joined")

    async def lost(self, connection: Connection) -> None:
        self.events.append("lost")

    async def received(self, connection: Connection, message: Message) -> None:
        if self.broken:
            raise RuntimeError("a bug")
        if self.events[-1] != type(message).__name__:
            self.events.append(type(message).__name__)


def _play(script: Any) -> list[str]:
    async def main() -> list[str]:
        server, diary = FakeScheduler(), Diary()
        connection = Connection(FakeChannel(server), "fake", ME, diary)
        connection.start()
        await asyncio.sleep(0.15)
        await script(server, diary, connection)
        await connection.close()
        return diary.events

    return asyncio.run(main())


def test_hello_messages_and_farewell() -> None:
    async def script(server: FakeScheduler, diary: Diary, connection: Connection) -> None:
        assert connection.was_connected and connection.server == server.hello()

    assert _play(script) == ["joined", "Stats", "lost"]


def test_restart_is_a_loss_and_a_new_beginning() -> None:
    async def script(server: FakeScheduler, diary: Diary, connection: Connection) -> None:
        server.restart()
        await asyncio.sleep(0.3)

    assert _play(script) == ["joined", "Stats", "lost", "joined", "Stats", "lost"]


def test_server_that_forgot_us_is_greeted_again() -> None:
    async def script(server: FakeScheduler, diary: Diary, connection: Connection) -> None:
        server.known = False
        await asyncio.sleep(0.3)
        assert server.known

    assert _play(script) == ["joined", "Stats", "lost", "joined", "Stats", "lost"]


def test_silence_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.net.handshake.LOST_SECONDS", 0.2)

    async def script(server: FakeScheduler, diary: Diary, connection: Connection) -> None:
        server.silent = True
        await asyncio.sleep(0.5)
        assert connection.server is None
        assert not await connection.post(Beat("g", 1))

    assert _play(script) == ["joined", "Stats", "lost"]


def test_silence_behind_a_connection_that_stands_is_noticed_sooner_than_behind_one_that_broke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first may be a link that is cut, the second is a server that starts again."""
    monkeypatch.setattr("baton_gateway.clients.connection.LOST_SECONDS", 0.2)
    monkeypatch.setattr("baton_gateway.clients.connection._AWAY_SECONDS", 0.6)

    async def main() -> list[bool]:
        server, found = FakeScheduler(), list[bool]()
        channel = FakeChannel(server)
        connection = Connection(channel, "fake", ME, Diary(), alone=True)
        assert not connection.silent, "nobody has answered yet"
        connection.start()
        await asyncio.sleep(0.15)
        for broken in (False, True):
            server.silent, channel.breaking = True, broken
            for seconds in (0.4, 0.5):
                await asyncio.sleep(seconds)
                found.append(connection.silent)
            server.silent = False
            await asyncio.sleep(0.2)
            found.append(connection.silent)
        await connection.close()
        return found

    assert asyncio.run(main()) == [True, True, False, False, True, False]


def test_a_broken_connection_is_a_loss_though_the_server_lives() -> None:
    """What was on its way is gone, and neither side would ever know."""

    async def main() -> list[str]:
        server, diary = FakeScheduler(), Diary()
        channel = FakeChannel(server)
        connection = Connection(channel, "fake", ME, diary)
        connection.start()
        await asyncio.sleep(0.15)
        channel.breaking = True
        await asyncio.sleep(0.3)
        await connection.close()
        return diary.events

    assert asyncio.run(main()) == ["joined", "Stats", "lost", "joined", "Stats", "lost"]


def test_bug_in_a_listener_and_a_foreign_protocol_do_not_stop_the_link() -> None:
    async def script(server: FakeScheduler, diary: Diary, connection: Connection) -> None:
        diary.broken = True
        await asyncio.sleep(0.15)
        diary.broken = False
        server.push(Hello("scheduler", "s", 1, "9", protocol=99))
        server.push(HelloRequest(5))
        await asyncio.sleep(0.3)

    assert _play(script) == ["joined", "Stats", "lost", "joined", "Stats", "lost"]


def test_pool_follows_the_directory() -> None:
    async def main() -> None:
        servers = {name: FakeScheduler() for name in "abc"}
        pool = Pool(FRONTEND, ME, lambda link, name, me: FakeChannel(servers[name]), Diary())
        await pool.follow(("a", "b"))
        assert pool.pick() is None
        assert await wait_until(lambda: len(pool.ready()) == 2, 2.0)
        assert {c.address for _ in range(4) if (c := pool.pick())} == {"a", "b"}
        await pool.follow(("b", "c"))
        assert await wait_until(lambda: len(pool.ready()) == 2, 2.0)
        assert [c.address for c in pool.ready()] == ["b", "c"]
        assert [known for known, _ in pool.servers()] == [True, True]
        await pool.close()
        assert not pool.ready() and len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_until() -> None:
    async def main() -> None:
        assert not await wait_until(lambda: False, 0.05)
        assert await wait_until(lambda: True, 0.0)

    asyncio.run(main())
