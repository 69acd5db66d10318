"""Messages of a pool reach the client that they are for."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from baton.protocol import DecodedText, Encoded, Prepared, Stats
from baton_gateway.clients.connection import Connection
from baton_gateway.clients.listeners import MediaListener, TokenizerListener


class Rpc:
    """A client of one pool, which notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def receive(self, message: Any) -> None:
        self.calls.append(("receive", message))

    def lost(self, connection: Any) -> None:
        self.calls.append(("lost", connection))


class Decoding:
    """The other client of the tokenizers, likewise."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def receive(self, message: Any, connection: Any) -> None:
        self.calls.append(("receive", message, connection))

    async def lost(self, connection: Any) -> None:
        self.calls.append(("lost", connection))

    async def place(self) -> None:
        self.calls.append(("place",))


class Peer:
    """A connection."""

    address = "here"


HERE = cast(Connection, Peer())
TEXT = DecodedText(b"", b"", ())
IDS = Encoded(1, b"")
MEDIA = Prepared(2, ())
OTHER = Stats(1, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


def _meet(listener: Any) -> None:
    async def main() -> None:
        await listener.joined(HERE)
        for message in (TEXT, IDS, MEDIA, OTHER):
            await listener.received(HERE, message)
        await listener.lost(HERE)

    asyncio.run(main())


def test_two_clients_share_the_tokenizers() -> None:
    tokenizers, decoding = Rpc(), Decoding()
    _meet(TokenizerListener(lambda: cast(Any, tokenizers), lambda: cast(Any, decoding)))
    assert tokenizers.calls == [("receive", IDS), ("lost", HERE)]
    assert decoding.calls == [("place",), ("receive", TEXT, HERE), ("lost", HERE)]


def test_the_media_preprocessors_have_one() -> None:
    preprocessors = Rpc()
    _meet(MediaListener(lambda: cast(Any, preprocessors)))
    assert preprocessors.calls == [("receive", MEDIA), ("lost", HERE)]
