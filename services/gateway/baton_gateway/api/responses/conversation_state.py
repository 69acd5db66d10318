"""The conversation of a response: the items before it, and the items that it adds."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from baton.errors import NotFound
from baton_gateway.access.reasoning_cipher import cipher_of
from baton_gateway.config import Config
from baton_gateway.durable.conversation_store import ConversationStore
from baton_gateway.durable.object_store import ObjectStore
from baton_gateway.durable.response_store import ResponseStore, StoredResponse
from baton_gateway.http.errors import invalid, wrong_type
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.responses.input_items import REFERENCE, Item
from baton_gateway.schemas.responses.request import ResponsesRequest
from baton_gateway.schemas.responses.response import Response
from baton_gateway.schemas.responses.stored_items import stored_items

_NUMBER = 32
"""Number of characters that the ids of a response and of its items share."""


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The conversation of one request."""

    objects: ObjectStore
    owner: str
    history: list[Item]
    """Items of the stored conversation, or of the previous response."""
    input: list[Item]
    """Items of the request, with ids."""
    conversation: str | None
    """Id of the conversation to which the items of request and response are appended."""
    store: bool
    """Whether the response is stored."""

    async def keep(self, response: Response, request: str = "") -> None:
        """Store a response. A response that has ended is appended to its conversation.

        Args:
            request: digest of a request with an idempotency key.

        Raises `Unavailable`.
        """
        encoded: dict[str, object] = msgspec.to_builtins(response)
        if self.store:
            stored = StoredResponse(encoded, [*self.history, *self.input], request)
            await ResponseStore(self.objects).add(self.owner, stored)
        if self.conversation is not None and response.status in ("completed", "incomplete"):
            output = msgspec.to_builtins(response.output)
            await ConversationStore(self.objects).append(
                self.conversation, self.owner, [*self.input, *output]
            )


async def state_of(request: Request, body: ResponsesRequest) -> ConversationState:
    """Load the objects that a request refers to. Raises `NotFound`, also for objects of another
    key."""
    objects: ObjectStore = request.app.state.objects
    owner, config = tenant_of(request), request.app.state.config
    items = [await _resolved(objects, owner, i, item) for i, item in enumerate(body.input)]
    return ConversationState(
        objects,
        owner,
        await _history(objects, owner, body),
        stored_items(_decrypted(config, owner, i, item) for i, item in enumerate(items)),
        body.conversation,
        body.store,
    )


async def _history(objects: ObjectStore, owner: str, body: ResponsesRequest) -> list[Item]:
    if body.conversation is not None:
        store = ConversationStore(objects)
        return (await store.get(body.conversation, owner, "conversation")).items
    if body.previous_response_id is None:
        return []
    param = "previous_response_id"
    previous = await ResponseStore(objects).get(body.previous_response_id, owner, param)
    if previous.running:
        raise invalid(
            param,
            f"Invalid '{param}': this response has not ended yet. "
            "Continue it once its status is final.",
        )
    return previous.conversation


def _decrypted(config: Config, owner: str, index: int, item: Item) -> Item:
    """Return thinking with its decrypted text; other items unchanged."""
    sealed = item.get("encrypted_content")
    if item["type"] != "reasoning" or sealed is None:
        return item
    param = f"input[{index}].encrypted_content"
    if not isinstance(sealed, str):
        raise wrong_type(param, "a string", sealed)
    try:
        text = cipher_of(config.reasoning_key, config.run_dir).decrypt(sealed, owner)
    except ValueError:
        raise invalid(
            param,
            f"Invalid '{param}': it was changed, or was not made by this server for this API key. "
            "Leave the item out.",
        ) from None
    return item | {"content": [{"type": "reasoning_text", "text": text}]}


async def _resolved(objects: ObjectStore, owner: str, index: int, item: Item) -> Item:
    """Return the stored item that a reference names, or the item itself."""
    if item["type"] != REFERENCE:
        return item
    name, param = item["id"], f"input[{index}].id"
    number = name.partition("_")[2][:_NUMBER]
    missing = f"Item with id '{name[:80]}' not found. It is of no stored response."
    try:
        stored = await ResponseStore(objects).get(f"resp_{number}", owner)
    except NotFound:
        raise NotFound(missing, code="item_not_found", param=param) from None
    for stored_item in stored.conversation:
        if stored_item["id"] == name:
            return stored_item
    raise NotFound(missing, code="item_not_found", param=param)
