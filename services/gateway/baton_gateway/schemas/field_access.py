"""Reads the fields of free-form JSON objects, so that errors name the exact field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_gateway.http.errors import (
    array_too_long,
    empty_array,
    invalid,
    missing,
    shorten,
    wrong_type,
)
from baton_gateway.schemas.chat_messages import MAX_MESSAGES


def array_of(value: object, param: str) -> list[Any]:
    """Return an array of 1 to `MAX_MESSAGES` elements. Raises `InvalidRequest`."""
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    if not value:
        raise empty_array(param)
    if len(value) > MAX_MESSAGES:
        raise array_too_long(param, MAX_MESSAGES)
    return value


def object_of(value: object, param: str) -> dict[str, Any]:
    """Return an object. Raises `InvalidRequest`."""
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return value


def field_of(value: Mapping[str, Any], name: str, param: str) -> Any:
    """Return a required field of the object `param`. Raises `InvalidRequest`."""
    if name not in value:
        raise missing(f"{param}.{name}")
    return value[name]


def string_of(value: Mapping[str, Any], name: str, param: str) -> str:
    """Return a required string of the object `param`. Raises `InvalidRequest`."""
    text = field_of(value, name, param)
    if not isinstance(text, str):
        raise wrong_type(f"{param}.{name}", "a string", text)
    return text


def kind_of(
    value: object, param: str, supported: tuple[str, ...], refused: Mapping[str, str]
) -> str:
    """Return the `type` of an object if it is supported. Raises `InvalidRequest`.

    Args:
        refused: advice for unsupported types.
    """
    kind = string_of(object_of(value, param), "type", param)
    if kind in supported:
        return kind
    where = f"{param}.type"
    expected = ", ".join(f"'{name}'" for name in supported)
    advice = refused.get(kind, f"Supported values are: {expected}.")
    raise invalid(where, f"Unsupported '{where}': {shorten(kind)}. {advice}", "unsupported_value")
