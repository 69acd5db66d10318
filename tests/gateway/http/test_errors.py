"""HTTP errors: body, wording and headers."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from baton.errors import BatonError, InvalidRequest, RateLimited, ServerFault, Unavailable
from baton_gateway.http.errors import (
    encode,
    name,
    path,
    respond,
    shorten,
    translate,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("x"), 400, "invalid_request_error", None),
        (InvalidRequest("x", code="c", status=415), 415, "invalid_request_error", "c"),
        (RateLimited("x"), 429, "requests", "rate_limit_exceeded"),
        (Unavailable("x"), 503, "service_unavailable_error", "server_is_overloaded"),
        (ServerFault("x"), 500, "server_error", "internal_error"),
    ],
)
def test_body(error: BatonError, status: int, kind: str, code: str | None) -> None:
    response = respond(error)
    assert response.status_code == status
    assert json.loads(response.body) == {
        "error": {"message": "x", "type": kind, "param": None, "code": code}
    }


@pytest.mark.parametrize(("after", "header"), [(None, "1"), (0, "1"), (7, "7"), (900, "120")])
def test_retry_after_is_a_number_that_clients_heed(after: int | None, header: str | None) -> None:
    """OpenAI's client ignores more than 120 seconds and does not retry at all then."""
    response = respond(Unavailable("x", retry_after=after))
    assert response.headers.get("retry-after") == header


def test_what_must_not_be_repeated() -> None:
    for code in ("request_quarantined", "unsupported_endpoint"):
        assert respond(ServerFault("x", code=code)).headers["x-should-retry"] == "false"
    assert "x-should-retry" not in respond(Unavailable("x")).headers


def test_text_that_is_no_text() -> None:
    assert json.loads(encode(InvalidRequest("a\ud800")))["error"]["message"] == "a\\ud800"


def test_paths_and_names() -> None:
    assert path(("messages", 0, "content", 1, "text")) == "messages[0].content[1].text"
    assert [name(v) for v in (None, True, 1, 1.0, "", [], {})] == [
        "null", "a boolean", "an integer", "a decimal", "a string", "an array", "an object"
    ]  # fmt: skip


class Form(BaseModel):
    """One field for each kind of problem."""

    model_config = ConfigDict(strict=True)

    count: int = Field(default=1, ge=1, le=2**31)
    heat: float = Field(default=1.0, gt=0.0, le=2.0)
    word: str = Field(default="", max_length=3)
    label: str = Field(default="a", pattern="^[a-z]$")
    tier: Literal["auto", "flex"] = "auto"
    items: list[int] = Field(default=[1], min_length=1, max_length=2)
    table: dict[str, int] = Field(default={}, max_length=1)
    needed: bool
    deep: Annotated[list[Form], Field()] = []


@pytest.mark.parametrize(
    ("fields", "code", "param", "message"),
    [
        ({"needed": ...}, "missing_required_parameter", "needed",
         "Missing required parameter: 'needed'."),
        ({"count": "5"}, "invalid_type", "count",
         "Invalid type for 'count': expected an integer, but got a string instead."),
        ({"count": 2**31 + 1}, "integer_above_max_value", "count",
         "Invalid 'count': integer above maximum value. Expected a value <= 2147483648, but got "
         "2147483649 instead."),
        ({"count": -(10**200)}, "integer_below_min_value", "count",
         "Invalid 'count': integer below minimum value. Expected a value >= 1, but got a smaller "
         "number instead."),
        ({"heat": 0.0}, "decimal_below_min_value", "heat",
         "Invalid 'heat': decimal below minimum value. Expected a value > 0, but got 0.0 instead."),
        ({"heat": True}, "invalid_type", "heat",
         "Invalid type for 'heat': expected a decimal, but got a boolean instead."),
        ({"word": "long"}, "string_above_max_length", "word",
         "Invalid 'word': string too long. Expected at most 3 characters."),
        ({"label": "a b"}, "invalid_value", "label",
         "Invalid 'label': expected a string that matches '^[a-z]$'."),
        ({"items": []}, "empty_array", "items", "Invalid 'items': empty array."),
        ({"tier": "gold"}, "invalid_value", "tier",
         "Invalid value: 'gold'. Supported values are: 'auto', 'flex'."),
        ({"items": [1, 2, 3]}, "array_above_max_length", "items",
         "Invalid 'items': array too long. Expected at most 2 elements."),
        ({"table": {"a": 1, "b": 2}}, "object_above_max_properties", "table",
         "Invalid 'table': too many properties. Expected at most 1."),
        ({"needed": None}, "invalid_type", "needed",
         "Invalid type for 'needed': expected a boolean, but got null instead."),
        ({"deep": [{"needed": 5}]}, "invalid_type", "deep[0].needed",
         "Invalid type for 'deep[0].needed': expected a boolean, but got an integer instead."),
    ],
)  # fmt: skip
def test_words_of_validation(fields: dict[str, Any], code: str, param: str, message: str) -> None:
    good = {"needed": True} | fields
    with pytest.raises(ValidationError) as caught:
        Form.model_validate({k: v for k, v in good.items() if v is not ...})
    error = translate(caught.value)
    assert (error.code, error.param, error.message) == (code, param, message)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("high", "'high'"),
        ({"type": "function", "on": [True, None]}, '{"type": "function", "on": [true, null]}'),
        (["é" * 60], '["' + "é" * 55 + "..."),
    ],
)
def test_values_of_clients_are_shown_as_json(value: object, text: str) -> None:
    assert shorten(value) == text
