"""Multipart uploads, whose files are written to disk while they arrive."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from starlette.datastructures import UploadFile
from starlette.requests import Request

from baton_gateway.config import Config
from baton_gateway.durable.file_store import CHUNK_BYTES, FileStore, StoredFile
from baton_gateway.http.errors import missing
from baton_gateway.http.form_reader import read_form

_LONGEST_NAME = 256


class UploadedFile:
    """A file that has been received, in a temporary file until it is saved."""

    def __init__(self, file: UploadFile) -> None:
        self._file = file

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._file.close()

    @property
    def filename(self) -> str:
        """The client's file name."""
        return (self._file.filename or "file")[:_LONGEST_NAME]

    async def save(self, store: FileStore, name: str) -> StoredFile:
        """Write it as the content of a new file. On an error the file is deleted."""
        try:
            while part := await self._file.read(CHUNK_BYTES):
                await store.append(name, part)
            return await store.finish(name)
        except BaseException:
            await store.discard(name)
            raise

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield its content."""
        while part := await self._file.read(CHUNK_BYTES):
            yield part


async def upload(request: Request, field: str = "file") -> tuple[dict[str, str], UploadedFile]:
    """Receive a form. Returns its text fields and its file `field`.

    Raises `InvalidRequest`: 413 as soon as it exceeds the limit, 415 for another media type.
    """
    config: Config = request.app.state.config
    form = await read_form(request, config.max_file_bytes)
    fields = {key: value for key, value in form.multi_items() if isinstance(value, str)}
    file = form.get(field)
    if not isinstance(file, UploadFile):
        await form.close()
        raise missing(field)
    return fields, UploadedFile(file)
