"""`truncation`: drops items from the beginning of a conversation that is too long."""

from __future__ import annotations

from starlette.requests import Request

from baton_gateway.api import chat
from baton_gateway.api.model_access import permitted
from baton_gateway.api.prompts.tokenize import encoded
from baton_gateway.api.responses.conversation_state import ConversationState
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.request import ResponsesRequest


async def fitting_chat(
    request: Request, body: ResponsesRequest, state: ConversationState
) -> ResponseChat:
    """Return the chat of a request.

    With truncation "auto", the oldest turns are left out until prompt and answer fit the context.
    The newest turn is never left out. Raises `InvalidRequest`.
    """
    full_chat = body.chat(state.history, state.input, state.owner)
    if body.truncation != "auto" or await _fits(request, full_chat):
        return full_chat
    items = [*state.history, *state.input]
    turns = [i for i, item in enumerate(items) if item.get("role") == "user"]
    system = [item for item in items if item.get("role") in ("system", "developer")]
    # The smallest number of dropped turns that fits: fewer turns never have more tokens.
    low, high = 0, len(turns) - 1
    while low < high:
        middle = (low + high) // 2
        if await _fits(request, body.chat(system, _from(items, turns[middle]))):
            high = middle
        else:
            low = middle + 1
    return body.chat(system, _from(items, turns[low]), state.owner) if turns else full_chat


def _from(items: list[dict[str, object]], start: int) -> list[dict[str, object]]:
    """Return the items from a turn on, without system messages, which are added separately."""
    return [item for item in items[start:] if item.get("role") not in ("system", "developer")]


async def _fits(request: Request, body: ResponseChat) -> bool:
    model_info = await permitted(request, body.model)
    ids = await encoded(request, model_info, chat.prompt_of(body), "input")
    return len(ids) + (body.limit or 1) <= model_info.max_model_len
