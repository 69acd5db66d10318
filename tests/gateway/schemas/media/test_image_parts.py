"""Images as other APIs send them."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.media.image_parts import anthropic_image, responses_image


def shown(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_each_is_a_part_of_a_chat() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert anthropic_image({"source": source}, "x") == shown("data:image/png;base64,aGk=")
    by_url = {"source": {"type": "url", "url": "https://x/y"}}
    assert anthropic_image(by_url, "x") == shown("https://x/y")
    assert responses_image({"image_url": "data:,", "detail": "low"}, "x") == shown("data:,")
    uploaded = {"type": "image_file", "image_file": {"file_id": "file-1"}}
    assert anthropic_image({"source": {"type": "file", "file_id": "file-1"}}, "x") == uploaded
    assert responses_image({"file_id": "file-1"}, "x") == uploaded


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ({}, "x.source.type"),
        ({"type": "file", "file_id": 5}, "x.source.file_id"),
        ({"type": "base64", "data": "aGk="}, "x.source.media_type"),
        ({"type": "url", "url": 5}, "x.source.url"),
    ],
)
def test_errors_name_the_field(source: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic_image({"source": source}, "x")
    assert caught.value.param == param
    with pytest.raises(InvalidRequest) as caught:
        responses_image({"file_id": 5}, "x")
    assert caught.value.param == "x.file_id"
