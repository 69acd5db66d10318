"""/v1/conversations: conversations that responses and clients append items to.

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
from baton_gateway.schemas.responses.item_list import ItemList, PageQuery, page_of
from baton_gateway.schemas.responses.stored_items import stored_items

router = APIRouter()


@router.post("/v1/conversations")
@describe(CreateConversationRequest, ConversationResource)
async def create(request: Request) -> Response:
    """Begin a conversation."""
    body = await read(request, CreateConversationRequest)
    store, owner = _store(request), tenant_of(request)
    new = await store.create(f"conv_{secrets.token_hex(16)}", owner, body.metadata)
    if body.items:
        items = stored_items(body.items)
        new = await store.change(new.id, owner, lambda one: one.with_items(items))
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

    def changed(one: Conversation) -> Conversation:
        return structs.replace(one, metadata=body.metadata)

    return _answer(await _store(request).change(name, tenant_of(request), changed))


@router.delete("/v1/conversations/{name}")
@describe(answer=Deleted)
async def delete(request: Request, name: str) -> Response:
    """Delete a conversation; responses that were part of it stay."""
    await _store(request).delete(name, tenant_of(request))
    return json_response(Deleted(id=name, object="conversation.deleted"))


@router.post("/v1/conversations/{name}/items")
@describe(CreateItemsRequest, ItemList)
async def create_items(request: Request, name: str) -> Response:
    """Append items."""
    items = stored_items((await read(request, CreateItemsRequest)).items)
    await _store(request).change(name, tenant_of(request), lambda one: one.with_items(items))
    return json_response(ItemList.of(items))


@router.get("/v1/conversations/{name}/items")
@describe(answer=ItemList)
async def items(request: Request, name: str) -> Response:
    """List the items of a conversation."""
    query = build(dict(request.query_params), PageQuery)
    found = await _store(request).get(name, tenant_of(request))
    return json_response(page_of(found.items, query))


@router.get("/v1/conversations/{name}/items/{item}")
@describe(answer=StoredItem)
async def retrieve_item(request: Request, name: str, item: str) -> Response:
    """Return one item."""
    found = await _store(request).get(name, tenant_of(request))
    for one in found.items:
        if one["id"] == item:
            return json_response(one)
    raise _no_item(item)


@router.delete("/v1/conversations/{name}/items/{item}")
@describe(answer=ConversationResource)
async def delete_item(request: Request, name: str, item: str) -> Response:
    """Remove one item."""

    def changed(one: Conversation) -> Conversation:
        rest = [known for known in one.items if known["id"] != item]
        if len(rest) == len(one.items):
            raise _no_item(item)
        return structs.replace(one, items=rest)

    return _answer(await _store(request).change(name, tenant_of(request), changed))


def _store(request: Request) -> ConversationStore:
    return ConversationStore(request.app.state.objects)


def _answer(one: Conversation) -> Response:
    return json_response(
        ConversationResource(id=one.id, created_at=one.created_at, metadata=one.metadata)
    )


def _no_item(name: str) -> NotFound:
    return NotFound(
        f"Item with id '{name[:80]}' not found in this conversation.", code="item_not_found"
    )
