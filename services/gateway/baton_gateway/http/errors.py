"""Converts errors to HTTP: OpenAI's error body and the headers that clients act on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from baton.errors import BatonError, InvalidRequest, Unavailable

_FINAL = frozenset(
    {
        "request_quarantined",
        "insufficient_quota",
        "request_timeout",
        "idempotency_key_reused",
        "unsupported_endpoint",
    }
)
"""Error codes with a status that OpenAI's clients would retry, although a retry cannot succeed."""
FAULT = "The server had an error while processing your request. Sorry about that!"
"""Message for unexpected errors; reveals no details."""
_LONGEST_WAIT = 120
"""Maximum Retry-After in seconds. OpenAI's client does not retry after longer ones."""
_EXPECTED = {
    "int": "an integer",
    "float": "a decimal",
    "bool": "a boolean",
    "string": "a string",
    "list": "an array",
    "tuple": "an array",
    "dict": "an object",
    "model": "an object",
}
_BOUNDS = {
    "greater_than_equal": ("below_min_value", "below minimum", ">=", "ge"),
    "greater_than": ("below_min_value", "below minimum", ">", "gt"),
    "less_than_equal": ("above_max_value", "above maximum", "<=", "le"),
}

ErrorEncoder: TypeAlias = Callable[[BatonError], bytes]
"""Converts an error to the body of a response, or the payload of an event."""


class ContextTooLong(InvalidRequest):
    """The prompt, or the prompt and its answer, exceed the model's context length."""

    def __init__(
        self, message: str, *, param: str, limit: int, length: int | None, requested: int | None
    ) -> None:
        """
        Args:
            limit: the context length in tokens.
            length: minimum number of tokens of the prompt; None if it was not encoded.
            requested: tokens of the answer; None if any number is acceptable.
        """
        super().__init__(message, code="context_length_exceeded", param=param)
        self.limit, self.length, self.requested = limit, length, requested


class UnpairedCall(InvalidRequest):
    """A call of a tool has no result right behind it, or a result has no call."""

    def __init__(self, message: str, *, param: str, in_blocks: str) -> None:
        """`in_blocks`: the message in the words of the Messages API."""
        super().__init__(message, param=param)
        self.in_blocks = in_blocks


class GatewayPartitioned(Unavailable):
    """The scheduler is unreachable from this gateway.

    The connection is closed, so the client's next one may reach another gateway on this port.
    """

    code = "cut_off"

    def __init__(self) -> None:
        super().__init__(
            "This gateway has lost touch with the scheduler. Send the request again, over a new "
            "connection: another gateway will take it.",
            retry_after=1,
        )


class ErrorDetails(msgspec.Struct):
    """`error` of an `ErrorResponse`. All four keys are always there."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct):
    """Body of a failed response, in OpenAI's shape."""

    error: ErrorDetails


def encode(error: BatonError) -> bytes:
    """Encode the error body as JSON. Text that is not valid Unicode is escaped."""
    safe = error.message.encode("utf-8", "backslashreplace").decode()
    details = ErrorDetails(safe, error.type, error.param, error.code)
    return msgspec.json.encode(ErrorResponse(details))


def respond(error: BatonError, encoder: ErrorEncoder = encode) -> Response:
    """Return the HTTP response for an error."""
    headers = {}
    after = 1 if error.status == 503 and error.retry_after is None else error.retry_after
    if after is not None:
        headers["retry-after"] = str(min(_LONGEST_WAIT, max(1, after)))
    if error.code in _FINAL:
        headers["x-should-retry"] = "false"
    if error.status == 413 or isinstance(error, GatewayPartitioned):
        headers["connection"] = "close"
    return Response(encoder(error), error.status, headers, media_type="application/json")


def path(location: tuple[str | int, ...]) -> str:
    """Format a field path: ("messages", 0, "role") gives `messages[0].role`."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location]
    return "".join(parts).removeprefix(".")


def name(value: object) -> str:
    """Return the JSON type of a value with its article."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string"}
    return kinds.get(type(value)) or ("an array" if isinstance(value, list) else "an object")


def wrong_type(param: str, expected: str, value: object) -> InvalidRequest:
    """Error for a field of the wrong JSON type."""
    return InvalidRequest(
        f"Invalid type for '{param}': expected {expected}, but got {name(value)} instead.",
        code="invalid_type",
        param=param,
    )


def missing(param: str) -> InvalidRequest:
    """Error for a missing required field."""
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )


def invalid(param: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    """Error for a field with an invalid value."""
    return InvalidRequest(message, code=code, param=param)


def empty_array(param: str) -> InvalidRequest:
    """Error for an array that must not be empty."""
    return invalid(param, f"Invalid '{param}': empty array.", "empty_array")


def empty_string(param: str) -> InvalidRequest:
    """Error for a string that must not be empty."""
    return invalid(param, f"Invalid '{param}': empty string.", "empty_string")


def array_too_long(param: str, limit: int) -> InvalidRequest:
    """Error for an array with more than `limit` elements."""
    message = f"Invalid '{param}': array too long. Expected at most {limit} elements."
    return invalid(param, message, "array_above_max_length")


def string_too_long(param: str, limit: int) -> InvalidRequest:
    """Error for a string with more than `limit` characters."""
    message = f"Invalid '{param}': string too long. Expected at most {limit} characters."
    return invalid(param, message, "string_above_max_length")


def too_many_properties(param: str, limit: int) -> InvalidRequest:
    """Error for an object with more than `limit` properties."""
    message = f"Invalid '{param}': too many properties. Expected at most {limit}."
    return invalid(param, message, "object_above_max_properties")


def translate(error: ValidationError) -> InvalidRequest:
    """Convert the first pydantic error to OpenAI's wording and codes."""
    problem = error.errors(include_url=False)[0]
    kind, param = problem["type"], path(problem["loc"])
    context: dict[str, Any] = problem.get("ctx", {})
    if kind == "missing":
        return missing(param)
    if kind in _BOUNDS:
        return _out_of_bounds(kind, param, context, problem["input"])
    if kind in {"too_long", "string_too_long"}:
        return _too_long(param, context, text=kind == "string_too_long")
    if kind == "string_too_short" and context["min_length"] == 1:
        return empty_string(param)
    if kind == "too_short" and context["min_length"] == 1:
        return empty_array(param)
    if kind == "string_pattern_mismatch":
        message = f"Invalid '{param}': expected a string that matches '{context['pattern']}'."
        return invalid(param, message)
    if kind == "literal_error":
        return invalid(
            param,
            f"Invalid value: {shorten(problem['input'])}. Supported values are: "
            f"{context['expected'].replace(' or ', ', ')}.",
        )
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is not None:
        return wrong_type(param, expected, problem["input"])
    return invalid(param, f"Invalid '{param}': {problem['msg']}.")


def shorten(value: object) -> str:
    """Format a client's value for an error message: text in quotes, others as JSON."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _out_of_bounds(kind: str, param: str, context: dict[str, Any], value: object) -> InvalidRequest:
    code, words, sign, key = _BOUNDS[kind]
    bound = context[key]
    number, shown = ("decimal", f"{bound:g}") if isinstance(bound, float) else ("integer", bound)
    return invalid(
        param,
        f"Invalid '{param}': {number} {words} value. Expected a value {sign} {shown}, but got "
        f"{_digits(value)} instead.",
        f"{number}_{code}",
    )


def _digits(value: object) -> str:
    """Format a number, unless it exceeds Python's limit on integer digits."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a larger number" if value > 0 else "a smaller number"
    return str(value)


def _too_long(param: str, context: dict[str, Any], *, text: bool) -> InvalidRequest:
    limit = context["max_length"]
    if text:
        return string_too_long(param, limit)
    if context.get("field_type") == "Dictionary":
        return too_many_properties(param, limit)
    return array_too_long(param, limit)
