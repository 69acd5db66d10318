"""Receives multipart forms, whose files are written to disk while they arrive."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from baton.errors import InvalidRequest
from baton_gateway.http.disconnect import ClientDisconnected

FRAME_BYTES = 64 * 1024
"""Maximum bytes of a form besides its file."""
_MOST_FIELDS = 64
_LONGEST_FIELD = FRAME_BYTES
_TOO_LONG = "Part exceeded maximum size"
"""The parser's message for a field beyond that limit."""
_LONGEST_BOUNDARY = 70
"""Characters (RFC 2046, section 5.1.1)."""
_CHARSETS = frozenset({b"utf-8", b"utf8", b"us-ascii", b"iso-8859-1"})


class _Stopped(MultiPartException):
    """Stops reading the body early. The parser closes its files for this kind of error only."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


async def read_form(
    request: Request, max_file_bytes: int, param: str | None = None, max_files: int = 1
) -> FormData:
    """Receive a form. The caller closes its files.

    Args:
        max_file_bytes: of all files.
        param: field of the file, for errors.

    Raises:
        InvalidRequest: 413 as soon as it exceeds the limit, 415 for another media type.
        ClientDisconnected: the client has left before the end.
    """
    _check_type(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_file_bytes + FRAME_BYTES:
        raise _too_large(max_file_bytes, param)
    stream = _bounded(request, max_file_bytes, param)
    parser = MultiPartParser(
        request.headers,
        stream,
        max_files=max_files,
        max_fields=_MOST_FIELDS,
        max_part_size=_LONGEST_FIELD,
    )
    try:
        return await parser.parse()
    except _Stopped as error:
        raise error.reason from None
    except MultiPartException as error:
        if error.message.startswith(_TOO_LONG):
            raise _field_too_long() from error
        raise InvalidRequest(f"The form cannot be read: {error.message}") from error


def _check_type(request: Request) -> None:
    header = request.headers.get("content-type", "")
    kind, _, parameters = header.partition(";")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if kind.strip().lower() != "multipart/form-data" or coding not in {"", "identity"}:
        raise _unsupported("Send the file as multipart/form-data, without Content-Encoding.")
    if len(parameters) > _LONGEST_BOUNDARY + 64:
        raise InvalidRequest("The form cannot be read: its boundary is too long.")
    charset = parse_options_header(header)[1].get(b"charset", b"utf-8")
    if charset.lower() not in _CHARSETS:
        # Other names select Python's codecs, some of which fail or do not decode to Unicode.
        raise _unsupported("Send the form in UTF-8.")


async def _bounded(request: Request, limit: int, param: str | None) -> AsyncGenerator[bytes, None]:
    """Yield the body. Raises `_Stopped` once it exceeds the limit, or the client leaves."""
    remaining = limit + FRAME_BYTES
    try:
        async for part in request.stream():
            remaining -= len(part)
            if remaining < 0:
                raise _Stopped(_too_large(limit, param))
            yield part
    except ClientDisconnect:
        raise _Stopped(ClientDisconnected()) from None


def _unsupported(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="unsupported_content_type", status=415)


def _field_too_long() -> InvalidRequest:
    return InvalidRequest(
        f"A field of the form is too long. Send at most {_LONGEST_FIELD} bytes in each, and data "
        "as a file.",
        code="request_too_large",
        status=413,
    )


def _too_large(limit: int, param: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"The file is too large. Send at most {limit} bytes.",
        code="request_too_large",
        param=param,
        status=413,
    )
