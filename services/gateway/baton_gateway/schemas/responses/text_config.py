"""`text`: the format of the answer's text, converted to a chat's `response_format`."""

from __future__ import annotations

from typing import Any

from baton_gateway.http.errors import wrong_type
from baton_gateway.schemas.field_access import kind_of, object_of

_FORMATS = ("text", "json_object", "json_schema")
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")


def text_config(value: object) -> dict[str, Any]:
    """Return `text` in the form that a response repeats. Raises `InvalidRequest`."""
    fields = object_of(value, "text")
    form = fields.get("format")
    config: dict[str, Any] = {"format": {"type": "text"}}
    if form is not None:
        kind_of(form, "text.format", _FORMATS, {})
        config["format"] = form
    verbosity = fields.get("verbosity")
    if verbosity is not None:
        if not isinstance(verbosity, str):
            raise wrong_type("text.verbosity", "a string", verbosity)
        config["verbosity"] = verbosity
    return config


def chat_format(config: dict[str, Any]) -> dict[str, Any]:
    """Return the equivalent fields of a chat."""
    form = config["format"]
    fields = {name: config[name] for name in ("verbosity",) if name in config}
    if form["type"] == "json_schema":
        schema = {name: form[name] for name in _SCHEMA_FIELDS if name in form}
        return fields | {"response_format": {"type": "json_schema", "json_schema": schema}}
    return fields | {"response_format": {"type": form["type"]}}
