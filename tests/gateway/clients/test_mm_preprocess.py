"""Preparation of media parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from baton.errors import InvalidRequest, NotFound, ServerFault
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


def test_an_uploaded_file_is_sent_for_its_owner() -> None:
    """Whoever asks is who may read; what is missing is named by its part."""
    named = MediaItem("image", "file_id:file-1", "messages[0].content[0].image_file")
    asked = []

    async def read(name: str, owner: str, most: int) -> bytes:
        asked.append((name, owner))
        if owner != "alice":
            raise NotFound(f"No such File object: {name}")
        return b"hi"

    async def main() -> None:
        client = MediaClient(Pool(MEDIA, ME, lambda link, name, me: None, Listener()), 0.3)  # type: ignore[arg-type, return-value]
        sent = list[tuple[MediaItem, ...]]()

        async def call(make: Any, *_: Any) -> Prepared:
            sent.append(make(1).items)
            return Prepared(1, (SEEN,))

        client.read_file, client.call = read, call  # type: ignore[method-assign]
        await client.prepare([named], "m", tenant="user", owner="alice")
        assert sent[0][0].url == "data:image/octet-stream;base64,aGk="
        with pytest.raises(InvalidRequest) as caught:
            await client.prepare([named], "m", tenant="alice", owner="bob")
        assert caught.value.param == named.param and len(sent) == 1
        assert asked == [("file-1", "alice"), ("file-1", "bob")]

    asyncio.run(main())


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
    with pytest.raises(ServerFault, match="sent an unexpected response"):
        asyncio.run(prepared(Server(lambda number: Prepared(number, answer))))
