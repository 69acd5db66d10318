"""Listeners of the pools: pass messages and losses to the clients that share a pool."""

from __future__ import annotations

from collections.abc import Callable

from baton.logs import logger
from baton.protocol import (
    DecodedText,
    Detokenized,
    Encoded,
    Message,
    Prepared,
    PreparedSpeech,
    RequestError,
    VocabularyBytes,
)
from baton_gateway.clients.connection import Connection
from baton_gateway.clients.detokenizer import DetokenizerClient
from baton_gateway.clients.mm_preprocess import MediaClient
from baton_gateway.clients.tokenizer import TokenizerClient

log = logger(__name__)


class TokenizerListener:
    """Passes events of the tokenizer pool to both of its clients. The clients are created after the
    pool, so they are looked up when an event arrives."""

    def __init__(
        self,
        tokenizers: Callable[[], TokenizerClient],
        decoding: Callable[[], DetokenizerClient],
    ) -> None:
        self._tokenizers, self._decoding = tokenizers, decoding

    async def joined(self, connection: Connection) -> None:
        log.info("the tokenizer at %s answers", connection.address)
        await self._decoding().place()

    async def lost(self, connection: Connection) -> None:
        self._tokenizers().lost(connection)
        await self._decoding().lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, DecodedText):
            await self._decoding().receive(message, connection)
        elif isinstance(message, (Encoded, Detokenized, VocabularyBytes, RequestError)):
            self._tokenizers().receive(message)


class MediaListener:
    """Passes events of the media preprocessor pool to its client, which is looked up likewise."""

    def __init__(self, preprocessors: Callable[[], MediaClient]) -> None:
        self._preprocessors = preprocessors

    async def joined(self, connection: Connection) -> None:
        log.info("the media preprocessor at %s answers", connection.address)

    async def lost(self, connection: Connection) -> None:
        log.info("the media preprocessor at %s is gone", connection.address)
        self._preprocessors().lost(connection)

    async def received(self, connection: Connection, message: Message) -> None:
        if isinstance(message, (Prepared, PreparedSpeech, RequestError)):
            self._preprocessors().receive(message)
