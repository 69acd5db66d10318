"""Messages, queries and documents of the pooling endpoints, in the forms that clients send."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.generation.pair_prompt import ContentParts
from baton_gateway.schemas.pooled_content import check_content, check_document, check_embeddable

URL = "data:image/png;base64,aGk="
IMAGE = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
TEXT = {"type": "text", "text": "a"}
SEEN = {"type": "image_url", "image_url": {"url": URL}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_an_image_by_itself() -> None:
    found = check_embeddable([user(IMAGE)])
    assert found == MediaItem("image", URL, "messages[0].content[0].image_url")


def test_text_is_a_conversation() -> None:
    system = {"role": "developer", "content": "b"}
    assert check_embeddable([system, user(TEXT)]) == [system | {"role": "system"}, user(TEXT)]


def image(value: Any) -> list[dict[str, Any]]:
    return [user({"type": "image_url", "image_url": value})]


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        ([user(IMAGE, TEXT)], "unsupported_value", "messages"),
        ([user(IMAGE, IMAGE)], "unsupported_value", "messages"),
        ([user(*[IMAGE] * 1000)], "unsupported_value", "messages"),
        ([{"role": "system", "content": "a"}, user(IMAGE)], "unsupported_value", "messages"),
        ([user({"type": "image_url"})], "missing_required_parameter", "image_url"),
        (image(URL), "invalid_type", "image_url"),
        (image(None), "invalid_type", "image_url"),
        (image({}), "missing_required_parameter", "image_url.url"),
        (image({"url": None}), "invalid_type", "image_url.url"),
        (image({"url": 5}), "invalid_type", "image_url.url"),
        (image({"url": "data:\u00e9"}), "invalid_image_url", "image_url"),
        (image({"url": "\ud800"}), "invalid_image_url", "image_url"),
        ([user({"type": "file", "file": {}})], "unsupported_value", "messages"),
        ([user({"type": "hologram"})], "invalid_value", "type"),
        ([user("a")], "invalid_type", "messages[0].content[0]"),
        ([5], "invalid_type", "messages[0]"),
        ([], "empty_array", "messages"),
        ({}, "invalid_type", "messages"),
        ("hi", "invalid_type", "messages"),
    ],
)
def test_what_is_refused(messages: Any, code: str | None, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_embeddable(messages)
    error = caught.value
    assert (error.status, error.code) == (400, code) and error.param is not None
    assert error.param == param or error.param == f"messages[0].content[0].{param}"


def test_texts_and_parts() -> None:
    both = ContentParts((TEXT, SEEN), "p.content", (TEXT, SEEN))
    for check in (check_content, check_document):
        assert check("a", "p") == check({"content": "a"}, "p") == "a"
        assert check({"content": [TEXT, SEEN]}, "p") == both
    assert check_document({"text": "a"}, "p") == "a"


def test_every_error_names_its_field() -> None:
    audio, bare = {"type": "input_audio"}, {"type": "image_url"}
    cases: list[tuple[Any, str, str]] = [
        (5, "invalid_type", "p"),
        ("", "empty_string", "p"),
        ({}, "missing_required_parameter", "p.content"),
        ({"content": ""}, "empty_string", "p.content"),
        ({"content": []}, "empty_array", "p.content"),
        ({"content": 5}, "invalid_type", "p.content"),
        ({"content": [5]}, "invalid_type", "p.content[0]"),
        ({"content": [TEXT, {}]}, "missing_required_parameter", "p.content[1].type"),
        ({"content": [TEXT, audio]}, "invalid_value", "p.content[1].type"),
        ({"content": [bare]}, "missing_required_parameter", "p.content[0].image_url"),
    ]
    for value, code, param in cases:
        with pytest.raises(InvalidRequest) as caught:
            check_content(value, "p")
        assert (caught.value.code, caught.value.param) == (code, param), value
