"""Messages of the pooling endpoints: a conversation, or a single image."""

from __future__ import annotations

from typing import Any

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.http.errors import invalid, missing, wrong_type
from baton_gateway.schemas.chat_messages import MAX_MESSAGES, Message, check_messages

Embeddable = MediaItem | list[Message]


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
    """Return the content parts of all messages with their field paths, a string as a text part.
    Invalid content is left to `check_messages`."""
    found: list[tuple[str, dict[str, Any]]] = []
    messages = value[:MAX_MESSAGES] if isinstance(value, list) else []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [{"type": "text"}]
        found += [
            (f"messages[{i}].content[{j}]", part)
            for j, part in enumerate(parts)
            if isinstance(part, dict)
        ]
    return found


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
