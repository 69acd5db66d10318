"""Errors with stable codes. The gateway maps them to HTTP; other services send `RequestError`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class BatonError(Exception):
    """Base class of all errors reported to users and operators.

    `code` is stable and machine-readable, `message` is one sentence that says what to do, `param`
    is the dotted path of the offending request field.
    """

    status = 500
    type = "server_error"
    code: str | None = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class InvalidRequest(BatonError):
    """The request is invalid and cannot succeed unchanged."""

    status = 400
    type = "invalid_request_error"
    code = None


class NotFound(InvalidRequest):
    """The route, model or stream does not exist."""

    status = 404


class RateLimited(BatonError):
    """The tenant exceeds its share; retry after `retry_after` seconds."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"


class Unavailable(BatonError):
    """The system cannot accept the request now; retry after `retry_after` seconds."""

    status = 503
    type = "service_unavailable_error"
    code = "server_is_overloaded"


class ServerFault(BatonError):
    """Internal error. The message contains no path, address or stack trace."""


class SettingsError(BatonError):
    """A flag or variable is unknown or has a bad value. Exits with code 2."""

    code = "bad_settings"


@contextmanager
def as_value_error() -> Iterator[None]:
    """Turn a `SettingsError` into the `ValueError` that pydantic expects of a validator."""
    try:
        yield
    except SettingsError as error:
        raise ValueError(error.message) from error


class ModelError(BatonError):
    """A checkpoint cannot be loaded: unknown architecture, missing tensor, bad file."""

    code = "bad_model"


class HubError(BatonError):
    """A model reference could not be resolved or downloaded."""

    code = "model_unavailable"


class WireError(BatonError):
    """An invalid frame. It is counted and dropped, never raised through a service loop."""

    code = "bad_frame"
