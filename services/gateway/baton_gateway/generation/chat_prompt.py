"""Prompts of conversations: messages with media markers, and the media in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from baton.protocol import MediaItem
from baton_gateway.generation.request import ChatPrompt

FILE_SCHEME = "file_id:"
"""Scheme of a URL that names an uploaded file."""
_MODALITIES = {
    "image_url": "image",
    "image_embeds": "image_embeds",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
"""Type of a part -> its modality."""


def chat_prompt(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    sound: bool | None = None,
) -> ChatPrompt:
    """Create the prompt of checked messages.

    Args:
        kwargs: additional variables of the chat template.
        sound: as `MediaItem.sound`, of every video.
    """
    media = list[MediaItem]()
    shown = [_shown(message, f"messages[{i}]", media) for i, message in enumerate(messages)]
    if sound is not None:
        media = [_with_sound(item, sound) for item in media]
    return ChatPrompt(
        messages=msgspec.json.encode(shown),
        tools=msgspec.json.encode(tools) if tools else b"",
        kwargs=msgspec.json.encode(kwargs) if kwargs else b"",
        add_generation_prompt=add_generation_prompt and not continue_final_message,
        continue_final_message=continue_final_message,
        media=tuple(media),
    )


def _shown(message: Mapping[str, Any], param: str, media: list[MediaItem]) -> Mapping[str, Any]:
    """The message in the form of templates; its media are appended to `media`."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": split_media(content, f"{param}.content", media)}


def _with_sound(item: MediaItem, sound: bool) -> MediaItem:
    return replace(item, sound=sound) if item.modality == "video" else item


def split_media(
    content: Sequence[Mapping[str, Any]], param: str, media: list[MediaItem]
) -> list[Mapping[str, Any]]:
    """The parts in the form of templates; their media are appended to `media`."""
    parts = list[Mapping[str, Any]]()
    for i, part in enumerate(content):
        if modality := _MODALITIES.get(kind := part["type"]):
            url, place = part[kind]["url"], f"{param}[{i}]"
            # A part that names a file had another field.
            place += "" if url.startswith(FILE_SCHEME) else f".{kind}"
            media.append(MediaItem(modality, url, place))
            part = {"type": modality.removesuffix("_embeds")}  # The name that chat templates use.
        parts.append(part)
    return parts
