"""`Idempotency-Key`: a request that comes again is answered by the run of the first one.

The id of the answer follows from the owner, the API and the key, so the journal finds it, on any
gateway with the same journal. It is kept as long as a durable stream.
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
    """Return the client's key, or None. Raises `InvalidRequest` for one that is no short text."""
    key = request.headers.get(HEADER)
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"Invalid Idempotency-Key header: expected 1 to {_LONGEST} visible characters.",
            code="invalid_value",
        )
    return key


def keyed_owner(request: Request, *, durable: bool = False) -> str:
    """Return the owner of a keyed run. Only a durable stream may also be read by its id, which
    every client that guesses the key knows."""
    tenant = tenant_of(request)
    return tenant if durable else f"{tenant}\0keyed"


def keyed_head(request: Request, prefix: str, api: str, model: str, key: str) -> Head:
    """Return the head of an answer under a key of this client."""
    whole = "\0".join((tenant_of(request), api, key)).encode()
    number = blake2b(whole, digest_size=16).hexdigest()
    return Head(f"{prefix}{number}", int(time.time()), model)


def check_same(request: Request, recorded: bytes) -> None:
    """Raise `InvalidRequest` unless the body is the one that came first under its key."""
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
    """Say whether a response is of a run that was there before."""
    if replayed:
        response.headers["idempotency-replayed"] = "true"
    return response
