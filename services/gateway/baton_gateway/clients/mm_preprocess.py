"""Client of the media preprocessors, which convert images to tensors."""

from __future__ import annotations

from collections.abc import Sequence

from baton.errors import ServerFault
from baton.protocol import MediaItem, Prepare, Prepared, PreparedMedia
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.rpc import RpcClient


class MediaClient(RpcClient[Prepared]):
    """Sends media to any available preprocessor."""

    def __init__(self, pool: Pool, patience: float) -> None:
        super().__init__(pool, patience, "media preprocessor")

    async def prepare(
        self, items: Sequence[MediaItem], model: str, trace: str = "", tenant: str = ""
    ) -> tuple[PreparedMedia, ...]:
        """Convert media items for a model. Raises `BatonError`, for example for an unreadable
        file."""
        answer = await self.call(lambda number: Prepare(number, tuple(items), tenant), trace, model)
        if len(answer.items) != len(items):
            raise ServerFault("The media preprocessor has not answered what it was asked.")
        return answer.items
