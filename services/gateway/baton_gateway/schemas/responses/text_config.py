"""`text`: the format of the answer's text, as the `response_format` of a chat."""

from __future__ import annotations

from typing import Any

from baton_gateway.http.errors import wrong_type
from baton_gateway.schemas.field_access import kind_of, object_of

_FORMATS = ("text", "json_object", "json_schema")
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")


def text_config(value: object) -> dict[str, Any]:
    """Return `text` as a response repeats it. Raises `InvalidRequest`."""
    given = object_of(value, "text")
    form = given.get("format")
    config: dict[str, Any] = {"format": {"type": "text"}}
    if form is not None:
        kind_of(form, "text.format", _FORMATS, {})
        config["format"] = form
    verbosity = given.get("verbosity")
    if verbosity is not None:
        if not isinstance(verbosity, str):
            raise wrong_type("text.verbosity", "a string", verbosity)
        config["verbosity"] = verbosity
    return config


def chat_format(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat that say the same."""
    form = config["format"]
    fields = {name: config[name] for name in ("verbosity",) if name in config}
    if form["type"] == "json_schema":
        schema = {name: form[name] for name in _SCHEMA_FIELDS if name in form}
        return fields | {"response_format": {"type": "json_schema", "json_schema": schema}}
    return fields | {"response_format": {"type": form["type"]}}
