"""RPC to stateless services; see also test_tokenizer."""

from __future__ import annotations

import asyncio

import pytest

from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable
from baton.net.topology import MEDIA
from baton.protocol import (
    Blob,
    Envelope,
    Message,
    Prepare,
    Prepared,
    PreparedMedia,
    RequestError,
)
from baton_gateway.clients.connection import Connection, Pool
from baton_gateway.clients.rpc import RpcClient
from tests.fakes.gateway_engine import FakeChannel, FakeServer
from tests.support.gateway.rpc_peers import (
    ME,
)


def named(number: int) -> PreparedMedia:
    return PreparedMedia(b"%d" % number, b"", Blob("float32", (), b""))


class Server(FakeServer):
    """Answers everything with one message."""

    service = "mm-preprocess"

    def __init__(self, reply: type[Prepared] | RequestError | None = Prepared) -> None:
        super().__init__()
        self.reply = reply

    def serve(self, message: Message) -> None:
        assert isinstance(message, Prepare)
        if isinstance(self.reply, RequestError):
            self.push(RequestError(message.id, *_fields(self.reply)))
        elif self.reply is not None:
            self.push(Prepared(message.id, (named(message.id),)))


def _fields(refused: RequestError) -> tuple[str | None, str, str | None, int]:
    return refused.code, refused.message, refused.param, refused.status


class Listener:
    """Passes answers and losses on, as the engine does."""

    questions: RpcClient[Prepared]

    async def joined(self, connection: Connection) -> None:
        """Nothing waits for it here."""

    async def lost(self, connection: Connection) -> None:
        self.questions.lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Prepared | RequestError)
        self.questions.receive(message)


async def asked(*servers: Server, at_once: int = 1) -> list[Prepared]:
    listener = Listener()
    places = {str(i): server for i, server in enumerate(servers)}
    pool = Pool(MEDIA, ME, lambda link, name, me: FakeChannel(places[name]), listener)
    listener.questions = RpcClient(pool, 0.3, "seer")
    await pool.follow(tuple(places))
    await asyncio.sleep(0.15)
    try:
        asking = [listener.questions.call(lambda n: Prepare(n, ())) for _ in range(at_once)]
        return await asyncio.gather(*asking)
    finally:
        await pool.close()


def test_every_question_has_its_own_answer() -> None:
    answers = asyncio.run(asked(Server(), Server(), at_once=5))
    assert [answer.items for answer in answers] == [(named(answer.id),) for answer in answers]
    assert len({answer.id for answer in answers}) == 5


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (404, InvalidRequest), (500, ServerFault)]
)
def test_a_refusal_is_the_error_that_it_says(status: int, kind: type[BatonError]) -> None:
    with pytest.raises(kind) as caught:
        asyncio.run(asked(Server(RequestError(0, "some_code", "No.", "a.b", status))))
    error = caught.value
    assert (error.status, error.code, error.message) == (status, "some_code", "No.")
    assert error.param == ("a.b" if status < 500 else None)


def test_one_that_is_full_says_when_to_come_back() -> None:
    with pytest.raises(Unavailable) as caught:
        asyncio.run(asked(Server(RequestError(0, "server_is_overloaded", "Later.", None, 503))))
    assert caught.value.retry_after == 1


def test_nobody_there() -> None:
    with pytest.raises(Unavailable, match="No seer is connected"):
        asyncio.run(asked())


def test_a_late_answer_is_nobodys() -> None:
    questions: RpcClient[Prepared] = RpcClient(Pool(MEDIA, ME, _never, Listener()), 0.0, "seer")
    questions.receive(Prepared(9, ()))
    assert Envelope().trace == ""


def _never(*_: object) -> FakeChannel:
    raise AssertionError("nobody is to be called")
