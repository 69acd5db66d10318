"""Client of the media preprocessors, which convert images and videos to tensors."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from baton.errors import InvalidRequest, NotFound, ServerFault
from baton.protocol import (
    MediaItem,
    Prepare,
    Prepared,
    PreparedMedia,
    PreparedSpeech,
    PrepareSpeech,
)
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.rpc import RpcClient
from baton_gateway.generation.chat_prompt import FILE_SCHEME

MAX_FILE_BYTES = 32 * 1024 * 1024
"""Maximum bytes of an uploaded file that are sent to a preprocessor, whose own limit may be
lower."""
ReadFile: TypeAlias = Callable[[str, str, int], Awaitable[bytes]]
"""(id, owner, maximum bytes) of an uploaded file -> its content. Raises `BatonError`."""


async def _no_files(name: str, owner: str, most: int) -> bytes:
    raise NotFound(f"No such File object: {name}")


Answer = Prepared | PreparedSpeech


class MediaClient(RpcClient[Answer]):
    """Sends media to any available preprocessor."""

    def __init__(self, pool: Pool, timeout: float) -> None:
        super().__init__(pool, timeout, "media preprocessor")
        self.read_file: ReadFile = _no_files
        """Reads uploaded files; None without a store."""

    async def prepare(
        self,
        items: Sequence[MediaItem],
        model: str,
        trace: str = "",
        tenant: str = "",
        owner: str = "",
    ) -> tuple[PreparedMedia, ...]:
        """Convert media items for a model.

        Args:
            tenant: for fair scheduling between tenants.
            owner: tenant whose uploaded files may be read.

        Raises:
            BatonError: for example `InvalidRequest` for an unreadable file.
        """
        resolved = tuple([await self._with_content(item, owner) for item in items])
        answer = await self.call(lambda number: Prepare(number, resolved, tenant), trace, model)
        if not isinstance(answer, Prepared) or _num_placed(answer) != len(items):
            raise _unexpected()
        return answer.items

    async def prepare_speech(
        self, item: MediaItem, first: int, model: str, trace: str = "", tenant: str = ""
    ) -> PreparedSpeech:
        """Convert the chunks of a recording, from number `first` on, as many as fit into a message.
        Raises as `prepare`."""
        answer = await self.call(
            lambda number: PrepareSpeech(number, item, first, tenant), trace, model
        )
        if not isinstance(answer, PreparedSpeech) or not answer.chunks:
            raise _unexpected()
        return answer

    async def _with_content(self, item: MediaItem, owner: str) -> MediaItem:
        """The item with a `data:` URL if it names an uploaded file."""
        if not item.url.startswith(FILE_SCHEME):
            return item
        name = item.url.removeprefix(FILE_SCHEME)
        try:
            data = await self.read_file(name, owner, MAX_FILE_BYTES)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, code=error.code, param=item.param) from error
        text = base64.b64encode(data).decode()
        url = f"data:{item.modality}/octet-stream;base64,{text}"
        return msgspec.structs.replace(item, url=url)


def _num_placed(answer: Prepared) -> int:
    """Items with a place of their own."""
    return sum(not item.num_within for item in answer.items)


def _unexpected() -> ServerFault:
    return ServerFault("The media preprocessor sent an unexpected response.")
