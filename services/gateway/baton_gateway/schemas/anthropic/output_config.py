"""`output_config`: the format of the answer's text.

https://docs.anthropic.com/en/docs/build-with-claude/structured-outputs
"""

from __future__ import annotations

from typing import Any

from baton_gateway.schemas.field_access import field_of, kind_of, object_of

FORMAT = "output_config.format"


def check_config(value: object) -> dict[str, Any] | None:
    """Return `output_config` with a checked `format`. Raises `InvalidRequest`."""
    if value is None:
        return None
    config = object_of(value, "output_config")
    return config | {"format": _format(config.get("format"), FORMAT)}


def check_format(value: object) -> dict[str, Any] | None:
    """Return `output_format`, checked. Raises `InvalidRequest`."""
    return _format(value, "output_format")


def _format(value: object, param: str) -> dict[str, Any] | None:
    if value is None:
        return None
    form = object_of(value, param)
    kind_of(form, param, ("json_schema",), {})
    object_of(field_of(form, "schema", param), f"{param}.schema")
    return form
