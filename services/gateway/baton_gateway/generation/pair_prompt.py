"""Prompts of queries and documents: content with media markers, and the media in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.generation.chat_prompt import split_media
from baton_gateway.generation.request import PairPrompt, TextPrompt


@dataclass(frozen=True, slots=True)
class ContentParts:
    """Texts and media of a query or a document."""

    parts: tuple[Mapping[str, Any], ...]
    """Checked content parts in the form of a chat's parts."""
    param: str
    """Path of the parts in the request, for errors."""
    original: tuple[Mapping[str, Any], ...] = ()
    """The parts in the client's form."""


Content: TypeAlias = str | ContentParts


def pair_prompt(query: Content, document: Content, *, document_first: bool) -> PairPrompt:
    """The prompt of a pair; `document_first` is the order in which the model reads the two."""
    query_content, query_media = _split_media(query)
    document_content, document_media = _split_media(document)
    in_order = (document_media, query_media) if document_first else (query_media, document_media)
    return PairPrompt(
        query_content, document_content, tuple(item for media in in_order for item in media)
    )


def single_prompt(content: Content) -> TextPrompt | MediaItem:
    """The prompt of a query or a document that is embedded alone. Raises `InvalidRequest` for an
    image next to other parts."""
    if isinstance(content, str):
        return TextPrompt(content)
    parts, media = _split_media(content)
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


def _split_media(content: Content) -> tuple[Any, list[MediaItem]]:
    """The content in the form of templates, and its media."""
    media = list[MediaItem]()
    if isinstance(content, str):
        return content, media
    return split_media(content.parts, content.param, media), media
