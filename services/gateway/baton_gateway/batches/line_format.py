"""Lines of the files of a batch: requests and their results.

https://platform.openai.com/docs/api-reference/batch/request-input
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class LineResponse(msgspec.Struct):
    """`response` of a line."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    """`error` of a line that was not run."""

    code: str
    message: str


class LineResult(msgspec.Struct):
    """One line of an output file or an error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


class BatchLine(msgspec.Struct):
    """One line of an input file."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: dict[str, Any]
