"""Queries and documents as prompts: their media beside them, and a mark in the place of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.generation.chat_prompt import media_apart
from baton_gateway.generation.request import PairPrompt, TextPrompt


@dataclass(frozen=True, slots=True)
class ContentParts:
    """Texts and media of a query or a document."""

    parts: tuple[Mapping[str, Any], ...]
    """Checked content parts, as those of a chat."""
    param: str
    """Path of the parts in the request, for errors."""
    given: tuple[Mapping[str, Any], ...] = ()
    """The same, as the client has sent them."""


Content: TypeAlias = str | ContentParts


def pair_prompt(query: Content, document: Content, *, document_first: bool) -> PairPrompt:
    """The prompt of a pair; `document_first` is the order in which the model reads the two."""
    asked, query_media = _apart(query)
    read, document_media = _apart(document)
    both = (document_media, query_media) if document_first else (query_media, document_media)
    return PairPrompt(asked, read, tuple(item for media in both for item in media))


def single_prompt(content: Content) -> TextPrompt | MediaItem:
    """The prompt of a query or a document that is embedded alone. Raises `InvalidRequest` for an
    image beside anything else."""
    if isinstance(content, str):
        return TextPrompt(content)
    parts, media = _apart(content)
    if not media:
        return TextPrompt("\n".join(part["text"] for part in parts))
    if len(content.parts) > 1:
        raise InvalidRequest(
            "Unsupported value: this model embeds a text or one image, and this content has "
            f"{len(content.parts)} parts. Send one.",
            code="unsupported_value",
            param=content.param,
        )
    return media[0]


def _apart(content: Content) -> tuple[Any, list[MediaItem]]:
    """The content as templates see it, and its media."""
    media = list[MediaItem]()
    if isinstance(content, str):
        return content, media
    return media_apart(content.parts, content.param, media), media
