"""Inputs of the pooling endpoints besides plain text: messages with text or a single image, and
queries and documents of text or content parts in vLLM's format."""

from __future__ import annotations

from typing import Any

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.generation.pair_prompt import Content, ContentParts
from baton_gateway.http.errors import empty_string, invalid, missing, wrong_type
from baton_gateway.schemas.chat_messages import MAX_MESSAGES, Message, check_messages, check_parts

Embeddable = MediaItem | list[Message]
_TYPES = ("text", "image_url", "image_embeds", "video_url")
"""Types of the parts of a query or a document."""


def check_embeddable(value: object) -> Embeddable:
    """Return the single image of the messages, or messages of text. Raises `InvalidRequest`."""
    parts = _parts(value)
    images = [(place, part) for place, part in parts if part.get("type") == "image_url"]
    if not images:
        return check_messages(value)
    if len(parts) > 1:
        raise invalid(
            "messages",
            "Unsupported value: 'messages' may hold one image and nothing else here, and this "
            f"request has {len(parts)} parts. Send each text and each image in a request of its "
            "own.",
            "unsupported_value",
        )
    [(place, part)] = images
    return MediaItem("image", _url(part, place), f"{place}.image_url")


def _parts(value: object) -> list[tuple[str, dict[str, Any]]]:
    """Return the content parts of all messages with their field paths; a string counts as a text
    part. Invalid content is left to `check_messages`."""
    content_parts: list[tuple[str, dict[str, Any]]] = []
    messages = value[:MAX_MESSAGES] if isinstance(value, list) else []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [{"type": "text"}]
        content_parts += [
            (f"messages[{i}].content[{j}]", part)
            for j, part in enumerate(parts)
            if isinstance(part, dict)
        ]
    return content_parts


def _url(part: dict[str, Any], place: str) -> str:
    if "image_url" not in part:
        raise missing(f"{place}.image_url")
    image = part["image_url"]
    if not isinstance(image, dict):
        raise wrong_type(f"{place}.image_url", "an object", image)
    if "url" not in image:
        raise missing(f"{place}.image_url.url")
    url = image["url"]
    if not isinstance(url, str):
        raise wrong_type(f"{place}.image_url.url", "a string", url)
    if not url.isascii():
        raise InvalidRequest(
            f"Invalid '{place}.image_url.url': expected data:image/png;base64,...",
            code="invalid_image_url",
            param=f"{place}.image_url",
        )
    return url


def check_text(value: object, param: str) -> str:
    """Check that a text is not empty. Raises `InvalidRequest`."""
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if not value:
        raise empty_string(param)
    return value


def check_content(value: object, param: str) -> Content:
    """Return a text, or the parts of `{"content": [...]}`. Raises `InvalidRequest`."""
    if not isinstance(value, dict):
        return check_text(value, param)
    if "content" not in value:
        raise missing(f"{param}.content")
    content = value["content"]
    if isinstance(content, str):
        return check_text(content, f"{param}.content")
    return _content_parts(content, f"{param}.content")


def check_document(value: object, param: str) -> Content:
    """Like `check_content`, and `{"text": ...}`."""
    if isinstance(value, dict) and "content" not in value:
        if "text" not in value:
            raise missing(f"{param}.text")
        return check_text(value["text"], f"{param}.text")
    return check_content(value, param)


def _content_parts(value: object, param: str) -> ContentParts:
    parts: list[dict[str, Any]] = value if isinstance(value, list) else []
    for i, part in enumerate(parts[:MAX_MESSAGES]):
        if isinstance(part, dict) and part.get("type", "text") not in _TYPES:
            kinds = ", ".join(f"'{kind}'" for kind in _TYPES)
            raise invalid(f"{param}[{i}].type", f"Invalid value. Supported values are: {kinds}.")
    return ContentParts(tuple(check_parts(value, param)), param, tuple(parts))
