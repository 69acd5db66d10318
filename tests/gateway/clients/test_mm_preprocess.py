"""Preparation of media parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton.errors import ServerFault
from baton.net.topology import MEDIA
from baton.protocol import Blob, MediaItem, Message, Prepare, Prepared, PreparedMedia
from baton_gateway.clients.connection import Connection, Pool
from baton_gateway.clients.mm_preprocess import MediaClient
from tests.fakes.gateway_engine import FakeChannel, FakeServer
from tests.support.gateway.rpc_peers import ME

ITEM = MediaItem("image", "data:image/png;base64,aGk=", "messages[0].content[0].image_url")
SEEN = PreparedMedia(b"h" * 32, bytes(12), Blob("float32", (1, 1, 1), bytes(4)))


class Server(FakeServer):
    service = "mm-preprocess"

    def __init__(self, answer: Callable[[int], Prepared]) -> None:
        super().__init__()
        self._answer = answer

    def serve(self, message: Message) -> None:
        assert isinstance(message, Prepare) and message.items == (ITEM,)
        self.push(self._answer(message.id))


class Listener:
    preprocessors: MediaClient

    async def joined(self, connection: Connection) -> None:
        """Nothing waits for it here."""

    async def lost(self, connection: Connection) -> None:
        self.preprocessors.lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Prepared)
        self.preprocessors.receive(message)


async def prepared(server: Server) -> tuple[PreparedMedia, ...]:
    listener = Listener()
    pool = Pool(MEDIA, ME, lambda link, name, me: FakeChannel(server), listener)
    listener.preprocessors = MediaClient(pool, 0.3)
    await pool.follow(("a",))
    try:
        return await listener.preprocessors.prepare([ITEM], "", "00-a-b-01")
    finally:
        await pool.close()


def test_an_image_is_prepared() -> None:
    server = Server(lambda number: Prepared(number, (SEEN,)))
    assert asyncio.run(prepared(server)) == (SEEN,)
    assert server.traces == ["00-a-b-01"]


@pytest.mark.parametrize("answer", [(), (SEEN, SEEN)])
def test_an_answer_to_another_question(answer: tuple[PreparedMedia, ...]) -> None:
    with pytest.raises(ServerFault, match="not answered what it was asked"):
        asyncio.run(prepared(Server(lambda number: Prepared(number, answer))))
