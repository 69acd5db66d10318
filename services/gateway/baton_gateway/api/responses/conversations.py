"""/v1/conversations: conversations to which responses and clients append items.

https://platform.openai.com/docs/api-reference/conversations
"""

from __future__ import annotations

import secrets

from fastapi import APIRouter
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import NotFound
from baton_gateway.api.documentation.description import describe
from baton_gateway.durable.conversation_store import Conversation, ConversationStore
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.responses.conversation import (
    ConversationResource,
    CreateConversationRequest,
    CreateItemsRequest,
    Deleted,
    StoredItem,
    UpdateConversationRequest,
)
from baton_gateway.schemas.responses.include_query import IncludeQuery, query_fields
from baton_gateway.schemas.responses.item_list import ItemList, PageQuery, page_of
from baton_gateway.schemas.responses.stored_items import stored_items

router = APIRouter()


@router.post("/v1/conversations")
@describe(CreateConversationRequest, ConversationResource)
async def create(request: Request) -> Response:
    """Create a conversation."""
    body = await read(request, CreateConversationRequest)
    store, owner = _store(request), tenant_of(request)
    new = await store.create(f"conv_{secrets.token_hex(16)}", owner, body.metadata)
    if body.items:
        items = stored_items(body.items)
        new = await store.change(new.id, owner, lambda conversation: conversation.with_items(items))
    return _answer(new)


@router.get("/v1/conversations/{name}")
@describe(answer=ConversationResource)
async def retrieve(request: Request, name: str) -> Response:
    """Return a conversation, without its items."""
    return _answer(await _store(request).get(name, tenant_of(request)))


@router.post("/v1/conversations/{name}")
@describe(UpdateConversationRequest, ConversationResource)
async def update(request: Request, name: str) -> Response:
    """Replace the metadata of a conversation."""
    body = await read(request, UpdateConversationRequest)

    def changed(conversation: Conversation) -> Conversation:
        return structs.replace(conversation, metadata=body.metadata)

    return _answer(await _store(request).change(name, tenant_of(request), changed))


@router.delete("/v1/conversations/{name}")
@describe(answer=Deleted)
async def delete(request: Request, name: str) -> Response:
    """Delete a conversation; its responses remain."""
    await _store(request).delete(name, tenant_of(request))
    return json_response(Deleted(id=name, object="conversation.deleted"))


@router.post("/v1/conversations/{name}/items")
@describe(CreateItemsRequest, ItemList)
async def create_items(request: Request, name: str) -> Response:
    """Append items."""
    build(query_fields(request.query_params.multi_items()), IncludeQuery)
    items = stored_items((await read(request, CreateItemsRequest)).items)
    await _store(request).change(
        name, tenant_of(request), lambda conversation: conversation.with_items(items)
    )
    return json_response(ItemList.of(items))


@router.get("/v1/conversations/{name}/items")
@describe(answer=ItemList)
async def items(request: Request, name: str) -> Response:
    """List the items of a conversation."""
    query = build(query_fields(request.query_params.multi_items()), PageQuery)
    conversation = await _store(request).get(name, tenant_of(request))
    return json_response(page_of(conversation.items, query))


@router.get("/v1/conversations/{name}/items/{item}")
@describe(answer=StoredItem)
async def retrieve_item(request: Request, name: str, item: str) -> Response:
    """Return one item."""
    build(query_fields(request.query_params.multi_items()), IncludeQuery)
    conversation = await _store(request).get(name, tenant_of(request))
    for one in conversation.items:
        if one["id"] == item:
            return json_response(one)
    raise _no_item(item)


@router.delete("/v1/conversations/{name}/items/{item}")
@describe(answer=ConversationResource)
async def delete_item(request: Request, name: str, item: str) -> Response:
    """Remove one item."""

    def changed(conversation: Conversation) -> Conversation:
        rest = [kept for kept in conversation.items if kept["id"] != item]
        if len(rest) == len(conversation.items):
            raise _no_item(item)
        return structs.replace(conversation, items=rest)

    return _answer(await _store(request).change(name, tenant_of(request), changed))


def _store(request: Request) -> ConversationStore:
    return ConversationStore(request.app.state.objects)


def _answer(conversation: Conversation) -> Response:
    return json_response(
        ConversationResource(
            id=conversation.id, created_at=conversation.created_at, metadata=conversation.metadata
        )
    )


def _no_item(name: str) -> NotFound:
    return NotFound(
        f"Item with id '{name[:80]}' not found in this conversation.", code="item_not_found"
    )
