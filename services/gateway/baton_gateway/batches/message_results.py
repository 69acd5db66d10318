"""Results of lines in Anthropic's format.

https://docs.anthropic.com/en/api/retrieving-message-batch-results
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from baton_gateway.batches.line_format import LineError, LineResult
from baton_gateway.batches.validation import numbered_lines
from baton_gateway.durable.batch_record import CANCELLED, EXPIRED

_KINDS = {EXPIRED: "expired", CANCELLED: "canceled"}
_ERROR_TYPES = {"invalid_api_key": "authentication_error"}
"""Error types of lines that were not run; other errors are the server's."""
_decoder = msgspec.json.Decoder(LineResult)


class MessageResult(msgspec.Struct, omit_defaults=True):
    """`result` of a line."""

    type: str
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class MessageLine(msgspec.Struct):
    """One line of the results."""

    custom_id: str
    result: MessageResult


async def message_lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Convert the lines of an output file or error file to those of a message batch."""
    async for _, text in numbered_lines(parts):
        line = _decoder.decode(text)
        yield msgspec.json.encode(MessageLine(line.custom_id, _result(line))) + b"\n"


def _result(line: LineResult) -> MessageResult:
    if line.response is None:
        assert line.error is not None
        kind = _KINDS.get(line.error.code)
        return MessageResult(kind) if kind else MessageResult("errored", error=_error(line.error))
    if line.response.status_code < 400:
        return MessageResult("succeeded", message=line.response.body)
    return MessageResult("errored", error=line.response.body)


def _error(error: LineError) -> msgspec.Raw:
    kind = _ERROR_TYPES.get(error.code, "api_error")
    details = {"type": kind, "message": error.message}
    return msgspec.Raw(msgspec.json.encode({"type": "error", "error": details}))
