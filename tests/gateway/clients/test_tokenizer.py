"""Tokenizers that reply, reject, die or are absent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from baton.errors import InvalidRequest, ServerFault, Unavailable
from baton.net.handshake import incarnation
from baton.net.topology import TOKENIZE
from baton.protocol import Encoded, Envelope, Hello, Message, RequestError, VocabularyBytes
from baton_gateway.clients.connection import Connection, Pool
from baton_gateway.clients.tokenizer import TokenizerClient, TokenizerGroup
from baton_gateway.generation.request import ChatPrompt, TextPrompt
from tests.fakes.gateway_engine import FakeChannel, FakeTokenizer

ME = Hello("gateway", "g", incarnation(), "0")


class Listener:
    """Passes answers and losses on, as the engine does."""

    tokenizers: TokenizerClient

    async def joined(self, connection: Connection) -> None:
        """Nothing waits for it here."""

    async def lost(self, connection: Connection) -> None:
        self.tokenizers.lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        assert isinstance(message, Encoded | VocabularyBytes | RequestError) or hasattr(
            message, "text"
        )
        self.tokenizers.receive(message)  # type: ignore[arg-type]


def _run(
    test: Callable[[TokenizerGroup, dict[str, FakeTokenizer]], Awaitable[None]],
    **given: FakeTokenizer,
) -> None:
    async def main() -> None:
        servers = given
        listener = Listener()
        pool = Pool(TOKENIZE, ME, lambda link, name, me: FakeChannel(servers[name]), listener)
        listener.tokenizers = TokenizerClient(pool, timeout=0.3)
        await pool.follow(tuple(servers))
        await asyncio.sleep(0.15)
        await test(listener.tokenizers.of(""), servers)
        await pool.close()

    asyncio.run(main())


def test_questions() -> None:
    async def check(tokenizers: TokenizerGroup, servers: dict[str, FakeTokenizer]) -> None:
        assert list(await tokenizers.encode(TextPrompt("hi", add_special=False), 9)) == [104, 105]
        assert len(await tokenizers.encode(TextPrompt("x" * 50), 9)) > 9
        assert await tokenizers.detokenize([104, 105], skip_special=True) == "hi"
        pieces = await tokenizers.pieces()
        assert pieces[104] == b"h" and await tokenizers.pieces() is pieces
        assert len([m for m in servers["a"].seen if type(m).__name__ == "Vocabulary"]) == 1

    _run(check, a=FakeTokenizer())


def test_refusal() -> None:
    async def check(tokenizers: TokenizerGroup, servers: dict[str, FakeTokenizer]) -> None:
        servers["a"].refuse = RequestError(0, "invalid_value", "No.", param="messages")
        with pytest.raises(InvalidRequest) as caught:
            await tokenizers.encode(ChatPrompt(b"[]"), 9)
        assert (caught.value.status, caught.value.code) == (400, "invalid_value")

    _run(check, a=FakeTokenizer())


class Mute(FakeTokenizer):
    """Takes questions and answers none."""

    def serve(self, message: Message) -> None:
        """The question stays open."""


def test_question_of_a_tokenizer_that_dies_is_put_to_the_other() -> None:
    async def check(tokenizers: TokenizerGroup, servers: dict[str, FakeTokenizer]) -> None:
        # Taking turns, one of two questions goes to the mute one first.
        texts = [asyncio.create_task(tokenizers.encode(TextPrompt("hi"), 9)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert [text.done() for text in texts].count(True) == 1
        mute = servers["a"]
        mute.restart()
        mute.silent = True
        mute.push(mute.hello())
        assert [list(ids) for ids in await asyncio.gather(*texts)] == [[256, 104, 105]] * 2

    _run(check, a=Mute(), b=FakeTokenizer())


def test_answer_of_another_kind() -> None:
    async def check(tokenizers: TokenizerGroup, servers: dict[str, FakeTokenizer]) -> None:
        server = servers["a"]
        server.serve = lambda m: server.push(VocabularyBytes(m.id, ()))  # type: ignore[attr-defined, method-assign]
        with pytest.raises(ServerFault, match="VocabularyBytes"):
            await tokenizers.encode(TextPrompt("hi"), 9)

    _run(check, a=FakeTokenizer())


def test_nobody_there() -> None:
    async def check(tokenizers: TokenizerGroup, servers: dict[str, FakeTokenizer]) -> None:
        with pytest.raises(Unavailable) as caught:
            await tokenizers.detokenize([1], skip_special=False)
        assert caught.value.retry_after == 1

    _run(check)


def test_envelope_carries_the_trace() -> None:
    async def check(tokenizers: TokenizerGroup, servers: dict[str, FakeTokenizer]) -> None:
        await tokenizers.encode(TextPrompt("hi"), 9, trace="00-a-b-01")
        assert servers["a"].traces == ["00-a-b-01"] and Envelope().trace == ""

    _run(check, a=FakeTokenizer())
