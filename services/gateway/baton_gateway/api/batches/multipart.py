"""Uploads as multipart form data, whose files go to disk while they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from baton.errors import InvalidRequest
from baton_gateway.config import Config
from baton_gateway.durable.file_store import CHUNK_BYTES, FileStore, StoredFile
from baton_gateway.http.disconnect import ClientDisconnected
from baton_gateway.http.errors import missing

_MOST_FIELDS = 16
_LONGEST_NAME = 256


class _Stopped(MultiPartException):
    """The body is not read to its end. The parser closes its files for this kind of error only."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


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
        """Its name, as the client says."""
        return (self._file.filename or "file")[:_LONGEST_NAME]

    async def save(self, store: FileStore, name: str) -> StoredFile:
        """Write it as the whole of a file that was begun. What fails leaves nothing."""
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

    Raises `InvalidRequest`: 413 as soon as it exceeds the limit, 415 for what is no form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise InvalidRequest(
            "Send the file as multipart/form-data.", code="unsupported_content_type", status=415
        )
    config: Config = request.app.state.config
    stream = _bounded(request, config.max_file_bytes)
    parser = MultiPartParser(request.headers, stream, max_files=1, max_fields=_MOST_FIELDS)
    try:
        form = await parser.parse()
    except _Stopped as error:
        raise error.reason from None
    except MultiPartException as error:
        raise InvalidRequest(f"The form cannot be read: {error.message}") from error
    fields = {key: value for key, value in form.multi_items() if isinstance(value, str)}
    file = form.get(field)
    if not isinstance(file, UploadFile):
        await form.close()
        raise missing(field)
    return fields, UploadedFile(file)


async def _bounded(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the body. Raises `_Stopped` once it is longer than a file may be, or breaks off."""
    left = limit + CHUNK_BYTES  # the fields and the frame of the form
    try:
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                raise _Stopped(_too_large(limit))
            yield part
    except ClientDisconnect:
        raise _Stopped(ClientDisconnected()) from None


def _too_large(limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The file is too large. Send at most {limit} bytes.",
        code="request_too_large",
        status=413,
    )
