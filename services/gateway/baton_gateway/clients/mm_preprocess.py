"""Client of the media preprocessors, which convert images to tensors."""

from __future__ import annotations

from baton.errors import ServerFault
from baton.protocol import MediaItem, Prepare, Prepared
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.rpc import RpcClient
from baton_gateway.generation.request import EncodedPrompt

PLACEHOLDER = 0
"""Placeholder id for a sequence that consists of one image; the model never reads it."""


class MediaClient(RpcClient[Prepared]):
    """Sends media to any available preprocessor."""

    def __init__(self, pool: Pool, patience: float) -> None:
        super().__init__(pool, patience, "media preprocessor")

    async def encode(self, item: MediaItem, model: str, trace: str = "") -> EncodedPrompt:
        """Encode one media part for a model as a sequence of its own. Raises `BatonError`, for
        example for an unreadable file."""
        answer = await self.call(lambda number: Prepare(number, (item,)), trace, model)
        if not len(answer.placeholders) == len(answer.tensors) == 1:
            raise ServerFault("The media preprocessor has not answered what it was asked.")
        return EncodedPrompt(
            PackedTokens.of([PLACEHOLDER] * answer.placeholders[0]), media=answer.tensors
        )
