"""Requests and answers of the Conversations API.

https://platform.openai.com/docs/api-reference/conversations
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BeforeValidator

from baton_gateway.schemas.base import Request
from baton_gateway.schemas.fields import Metadata
from baton_gateway.schemas.responses.input_items import Conversation, Item, input_items


def _items(value: object) -> list[Item]:
    """Return items for a conversation. Raises `InvalidRequest` for items that no chat could
    contain."""
    items = [] if value == [] else input_items(value, "items")
    Conversation().add(items, "items", partial=True)
    return items


Items = Annotated[list[Item], BeforeValidator(_items)]


class CreateConversationRequest(Request):
    """POST /v1/conversations"""

    items: Items = []
    metadata: Metadata = {}

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset()


class UpdateConversationRequest(Request):
    """POST /v1/conversations/{id}"""

    metadata: Metadata

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset()


class CreateItemsRequest(Request):
    """POST /v1/conversations/{id}/items"""

    items: Items

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset()


class ConversationResource(msgspec.Struct, kw_only=True):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class Deleted(msgspec.Struct, kw_only=True):
    """Answer to a deletion."""

    id: str
    object: str
    deleted: Literal[True] = True


StoredItem = dict[str, Any]
"""An item of a conversation."""
