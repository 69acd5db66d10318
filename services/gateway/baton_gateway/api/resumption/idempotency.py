"""`Idempotency-Key`: a repeated request is answered by the run of the first one.

The id of the answer is derived from the owner, the API and the key, so any gateway with the same
journal finds it. It is kept as long as a durable stream.
"""

from __future__ import annotations

import re
import time
from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton_gateway.http.middleware import tenant_of
from baton_gateway.streaming.head import Head

HEADER = "idempotency-key"
_LONGEST = 255
_KEY = re.compile(rf"[\x20-\x7e]{{1,{_LONGEST}}}")


def idempotency_key(request: Request) -> str | None:
    """Return the client's key, or None. Raises `InvalidRequest` if it is empty or too long."""
    key = request.headers.get(HEADER)
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"Invalid Idempotency-Key header: expected 1 to {_LONGEST} visible characters.",
            code="invalid_value",
        )
    return key


def keyed_owner(request: Request, *, durable: bool = False) -> str:
    """Return the owner of a keyed run. Only durable streams may also be read by their id, which any
    client could derive from a guessed key."""
    tenant = tenant_of(request)
    return tenant if durable else f"{tenant}\0keyed"


def keyed_head(request: Request, prefix: str, api: str, model: str, key: str) -> Head:
    """Return the head of an answer with a key of this client."""
    identity = "\0".join((tenant_of(request), api, key)).encode()
    number = blake2b(identity, digest_size=16).hexdigest()
    return Head(f"{prefix}{number}", int(time.time()), model)


def check_same(request: Request, recorded: bytes) -> None:
    """Raise `InvalidRequest` unless the body equals that of the first request with its key."""
    if recorded != request.state.body:
        raise reused()


def reused() -> InvalidRequest:
    """Error for a key that another request has used."""
    return InvalidRequest(
        "This Idempotency-Key was used with another body. Use a new key for a new request.",
        code="idempotency_key_reused",
        status=409,
    )


def mark(response: Response, *, replayed: bool) -> Response:
    """Mark a response with whether it comes from an earlier run."""
    if replayed:
        response.headers["idempotency-replayed"] = "true"
    return response
