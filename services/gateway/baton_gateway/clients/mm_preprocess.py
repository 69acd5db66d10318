"""Media of requests to tensors, by whichever media preprocessor has time."""

from __future__ import annotations

from array import array

from baton.errors import ServerFault
from baton.protocol import MediaItem, Prepare, Prepared
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.rpc import RpcClient
from baton_gateway.generation.request import EncodedPrompt

PLACEHOLDER = 0
"""The id of tokens that stand for an image which is all of its sequence: no model reads it."""


class MediaClient(RpcClient[Prepared]):
    """Request and response by id."""

    def __init__(self, pool: Pool, patience: float) -> None:
        super().__init__(pool, patience, "media preprocessor")

    async def encode(self, item: MediaItem, trace: str = "") -> EncodedPrompt:
        """A media part by itself as a sequence. Raises `BatonError`, for example for a file that
        cannot be read."""
        answer = await self.call(lambda number: Prepare(number, (item,)), trace)
        if not len(answer.placeholders) == len(answer.tensors) == 1:
            raise ServerFault("The media preprocessor has not answered what it was asked.")
        return EncodedPrompt(
            array("i", [PLACEHOLDER] * answer.placeholders[0]), media=answer.tensors
        )
