"""Media of requests to tensors, by whichever media preprocessor has time."""

from __future__ import annotations

from array import array

from baton.errors import ServerFault
from baton.protocol import MediaItem, Prepare, Prepared
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.rpc import Questions
from baton_gateway.generation.request import Encoding

PLACEHOLDER = 0
"""The id of tokens that stand for an image which is all of its sequence: no model reads it."""


class Preprocessors(Questions[Prepared]):
    """Request and response by id."""

    def __init__(self, pool: Pool, patience: float) -> None:
        super().__init__(pool, patience, "media preprocessor")

    async def encode(self, item: MediaItem, trace: str = "") -> Encoding:
        """A media part by itself as a sequence. Raises `BatonError`, for example for a file that
        cannot be read."""
        answer = await self.ask(lambda number: Prepare(number, (item,)), trace)
        if not len(answer.placeholders) == len(answer.tensors) == 1:
            raise ServerFault("The media preprocessor has not answered what it was asked.")
        return Encoding(array("i", [PLACEHOLDER] * answer.placeholders[0]), media=answer.tensors)
