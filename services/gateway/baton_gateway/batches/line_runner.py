"""Runs one line of a batch through the application, like a request over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message, Scope

from baton_gateway.access.api_keys import ApiKey
from baton_gateway.batches.line_format import LineError, LineResponse, LineResult
from baton_gateway.durable.batch_record import CANCELLED, EXPIRED
from baton_gateway.durable.batch_store import Line
from baton_gateway.http.middleware import TRUSTED_KEY

_AGAIN = frozenset({429, 503})
_FINAL = frozenset({"insufficient_quota", "request_quarantined"})
"""Codes of a 429 or 503 that a retry cannot fix."""
_LONGEST_WAIT = 60.0
_EXPIRED = LineError(
    EXPIRED,
    "This request could not be executed before the completion window expired.",
)
_CANCELLED = LineError(CANCELLED, "The batch was cancelled before this request was executed.")
_REVOKED = LineError("invalid_api_key", "The API key that made this batch no longer exists.")


class LineOutcome(NamedTuple):
    """Result of a line."""

    result: bytes
    """JSON object: the line in the output file or error file."""
    ok: bool


class LineRunner:
    """Sends lines to an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def run(
        self, line: Line, path: str, key: ApiKey | None, priority: int
    ) -> tuple[LineOutcome | None, float]:
        """Return the result of a line, or None and the seconds after which to retry.

        Args:
            key: charged for it; None if the key was removed.
        """
        if key is None:
            return LineOutcome(_encoded(line, None, _REVOKED), False), 0.0
        body = msgspec.json.decode(line.body) | {"priority": priority}
        answer = _Answer()
        scope = _scope(path, msgspec.json.encode(body), key)
        await self._app(scope, _Inbox(msgspec.json.encode(body)).receive, answer.send)
        if answer.status in _AGAIN and answer.code not in _FINAL:
            return None, answer.retry_after
        response = LineResponse(answer.status, answer.request_id, msgspec.Raw(answer.body))
        return LineOutcome(_encoded(line, response, None), answer.status < 400), 0.0


def expired_line(line: Line) -> bytes:
    """Return the result of a line that was not run in time."""
    return _encoded(line, None, _EXPIRED)


def cancelled_line(line: Line) -> bytes:
    """Return the result of a line whose batch was cancelled before it ran."""
    return _encoded(line, None, _CANCELLED)


def _encoded(line: Line, response: LineResponse | None, error: LineError | None) -> bytes:
    name = f"batch_req_{uuid.uuid4().hex}"
    return msgspec.json.encode(LineResult(name, line.custom_id, response, error))


def _scope(path: str, body: bytes, key: ApiKey) -> Scope:
    headers = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": list(headers.items()),
        "client": None,
        "server": None,
        TRUSTED_KEY: key,
    }


class _Inbox:
    """An ASGI client that has sent its request and waits for the response."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def receive(self) -> Message:
        """Return the body once; no message follows."""
        if self._body is None:
            await asyncio.Event().wait()
        message = {"type": "http.request", "body": self._body, "more_body": False}
        self._body = None
        return message


class _Answer:
    """Collects a response."""

    def __init__(self) -> None:
        self.status, self.body = 0, b""
        self._headers: dict[str, str] = {}

    async def send(self, message: Any) -> None:
        """Collect a message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            self.body += message.get("body", b"")

    @property
    def request_id(self) -> str:
        """X-Request-Id of the line's request."""
        return self._headers.get("x-request-id", "")

    @property
    def retry_after(self) -> float:
        """Seconds of its Retry-After."""
        return min(_LONGEST_WAIT, float(self._headers.get("retry-after", "1")))

    @property
    def code(self) -> str | None:
        """Code of its error."""
        error = msgspec.json.decode(self.body).get("error") or {}
        code: str | None = error.get("code")
        return code
