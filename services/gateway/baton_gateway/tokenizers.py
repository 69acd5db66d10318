"""Questions to the tokenizers: text to ids, ids to text, the vocabulary. Any of them may answer."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from itertools import count

from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable
from baton.protocol import (
    Detokenize,
    Detokenized,
    EncodeChat,
    Encoded,
    EncodeText,
    Envelope,
    Message,
    Pieces,
    Refused,
    TokenizerInfo,
    Vocabulary,
)
from baton.tokens import pack, unpack
from baton_gateway.connection import Connection, Pool, until
from baton_gateway.generation import ChatPrompt, PairPrompt, TextPrompt

Answer = Encoded | Detokenized | Pieces | Refused
_TRIES = 2
"""A tokenizer that dies takes its questions with it: they are put once more, to another."""


class _Lost(Exception):
    """The tokenizer that was asked has gone."""


class Tokenizers:
    """Request and response by id. The pool's listener passes `answer` and `lost` on to here."""

    def __init__(self, pool: Pool, patience: float) -> None:
        self._pool = pool
        self._patience = patience
        self._ids = count(1)
        self._pending: dict[int, tuple[Connection, asyncio.Future[Answer]]] = {}
        self._pieces: tuple[bytes, ...] = ()

    @property
    def info(self) -> TokenizerInfo | None:
        """What the tokenizers can do; None while none answers."""
        for connection in self._pool.ready():
            if connection.server is not None and connection.server.tokenizer is not None:
                return connection.server.tokenizer
        return None

    async def encode(
        self, prompt: ChatPrompt | TextPrompt, limit: int, trace: str = ""
    ) -> array[int]:
        """Ids of a prompt, int32; more than `limit` of them mean that it is longer than that."""
        ids, _ = await self.encode_pair(prompt, limit, trace)
        return ids

    async def encode_pair(
        self, prompt: ChatPrompt | TextPrompt | PairPrompt, limit: int, trace: str = ""
    ) -> tuple[array[int], int]:
        """The same, and where the second text begins, if the model tells the two apart; else 0."""
        answer = await self._ask(lambda id: _encode(id, prompt, limit), trace)
        if not isinstance(answer, Encoded):
            raise _unexpected(answer)
        return unpack(answer.tokens), answer.second

    async def detokenize(self, tokens: Sequence[int], skip_special: bool) -> str:
        """Text of whole id lists."""
        column = pack(tokens)
        answer = await self._ask(lambda id: Detokenize(id, column, skip_special))
        if not isinstance(answer, Detokenized):
            raise _unexpected(answer)
        return answer.text

    async def pieces(self) -> tuple[bytes, ...]:
        """Raw bytes of every token. Asked once: a deployment has one vocabulary."""
        if not self._pieces:
            answer = await self._ask(Vocabulary)
            if not isinstance(answer, Pieces):
                raise _unexpected(answer)
            self._pieces = answer.pieces
        return self._pieces

    def answer(self, message: Answer) -> None:
        """Hand an answer to whoever asked; nobody may wait for it any more."""
        _, future = self._pending.get(message.id, (None, None))
        if future is not None and not future.done():
            future.set_result(message)

    def lost(self, connection: Connection) -> None:
        """Let the questions that this connection was asked be asked again."""
        for home, future in self._pending.values():
            if home is connection and not future.done():
                future.set_exception(_Lost())

    async def _ask(self, build: Callable[[int], Message], trace: str = "") -> Answer:
        for _ in range(_TRIES):
            try:
                answer = await self._ask_once(build(next(self._ids) & 0xFFFFFFFF), trace)
            except _Lost:
                continue
            if isinstance(answer, Refused):
                raise _refusal(answer)
            return answer
        raise Unavailable("The tokenizers are restarting. Try again in a moment.", retry_after=1)

    async def _ask_once(self, question: Message, trace: str) -> Answer:
        await until(lambda: bool(self._pool.ready()), self._patience)
        connection = self._pool.pick()
        if connection is None:
            raise Unavailable("No tokenizer is connected. Try again in a moment.", retry_after=1)
        number: int = question.id  # type: ignore[attr-defined]
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[number] = (connection, future)
        try:
            if not await connection.post(question, Envelope(trace=trace) if trace else None):
                raise _Lost
            return await future
        finally:
            del self._pending[number]


def _encode(number: int, prompt: ChatPrompt | TextPrompt | PairPrompt, limit: int) -> Message:
    if isinstance(prompt, PairPrompt):
        # What is judged may come from anywhere: its text never becomes a separator.
        return EncodeText(number, prompt.text, allow_special=False, limit=limit, pair=prompt.pair)
    if isinstance(prompt, TextPrompt):
        return EncodeText(number, prompt.text, add_special=prompt.add_special, limit=limit)
    return EncodeChat(
        number,
        prompt.messages,
        tools=prompt.tools,
        kwargs=prompt.kwargs,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        limit=limit,
    )


def _refusal(answer: Refused) -> BatonError:
    if answer.status >= 500:
        return ServerFault(answer.message, code=answer.code, status=answer.status)
    return InvalidRequest(
        answer.message, code=answer.code, param=answer.param, status=answer.status
    )


def _unexpected(answer: Answer) -> ServerFault:
    return ServerFault(f"The tokenizer answered with {type(answer).__name__}.")
