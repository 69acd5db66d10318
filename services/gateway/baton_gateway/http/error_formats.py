"""The format of error bodies: OpenAI's, or Anthropic's on the paths of its API. Both APIs list
models on one path, where a header of Anthropic's clients selects the format.

https://docs.anthropic.com/en/api/errors
"""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import Headers
from starlette.types import Scope

from baton.errors import BatonError
from baton_gateway.http.errors import ContextTooLong, ErrorEncoder, UnpairedCall, encode

_MESSAGES, _MODELS = "/v1/messages", "/v1/models"
ANTHROPIC_VERSION = "anthropic-version"
"""Header of Anthropic's clients."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Status -> type; other statuses are errors of the client or the server in general."""
_NO_THREADS = "thread_unsupported_request"
"""Cause at which Anthropic's clients send the whole conversation instead."""


class ErrorCause(msgspec.Struct):
    """`error.details` of an `AnthropicError`."""

    error_code: str


class AnthropicErrorDetails(msgspec.Struct):
    """`error` of an `AnthropicError`."""

    type: str
    message: str
    details: ErrorCause | UnsetType = UNSET


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """Body of a failed response in Anthropic's format."""

    error: AnthropicErrorDetails
    request_id: str


def is_messages(path: str) -> bool:
    """Return whether a path belongs to the Messages API."""
    return path == _MESSAGES or path.startswith(_MESSAGES + "/")


def encoder_of(scope: Scope) -> ErrorEncoder:
    """Return the encoder of a request's errors."""
    path = scope["path"]
    if is_messages(path) or (
        path.startswith(_MODELS) and ANTHROPIC_VERSION in Headers(scope=scope)
    ):
        return partial(encode_anthropic, request_id=scope["state"]["request_id"])
    return encode


def encode_anthropic(error: BatonError, request_id: str) -> bytes:
    """Encode the error body as JSON. Text that is not valid Unicode is escaped."""
    message = _anthropic_message(error).encode("utf-8", "backslashreplace").decode()
    general = "invalid_request_error" if error.status < 500 else "api_error"
    details = AnthropicErrorDetails(_TYPES.get(error.status, general), message)
    if (error.code, error.param) == ("unsupported_parameter", "thread"):
        details.details = ErrorCause(_NO_THREADS)
    return msgspec.json.encode(AnthropicError(details, request_id))


def _anthropic_message(error: BatonError) -> str:
    """Return the message of an error. Errors about the context length and about calls without
    results have Anthropic's wording, which coding agents parse."""
    if isinstance(error, UnpairedCall):
        return error.in_blocks
    if not isinstance(error, ContextTooLong):
        named = error.param is None or error.param in error.message
        return error.message if named else f"{error.param}: {error.message}"
    length, requested, limit = error.length, error.requested, error.limit
    if length is None or requested is None or length > limit:
        tokens = "more" if length is None else f"{length} tokens"
        return f"prompt is too long: {tokens} > {limit} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {length} + {requested} > {limit}, "
        "decrease input length or `max_tokens` and try again"
    )
