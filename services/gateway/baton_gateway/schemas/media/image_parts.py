"""Converts images of other APIs to parts of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_gateway.schemas.field_access import field_of, kind_of, object_of, string_of

Part = dict[str, Any]


def anthropic_image(block: Mapping[str, Any], param: str) -> Part:
    """Convert a block of type "image". Raises `InvalidRequest` with the path of the field."""
    where = f"{param}.source"
    source = object_of(field_of(block, "source", param), where)
    kind = kind_of(source, where, ("base64", "url", "file"), {})
    if kind == "file":
        return {
            "type": "image_file",
            "image_file": {"file_id": string_of(source, "file_id", where)},
        }
    if kind == "url":
        return _part(string_of(source, "url", where))
    media_type, data = (string_of(source, name, where) for name in ("media_type", "data"))
    return _part(f"data:{media_type};base64,{data}")


def responses_image(part: Mapping[str, Any], param: str) -> Part:
    """Convert a part of type "input_image". Raises `InvalidRequest` with the path of the field."""
    if part.get("image_url") is None and part.get("file_id") is not None:
        name = string_of(part, "file_id", param)
        return {"type": "image_file", "image_file": {"file_id": name}}
    return _part(string_of(part, "image_url", param))


def _part(url: str) -> Part:
    return {"type": "image_url", "image_url": {"url": url}}
