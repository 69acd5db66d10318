"""/v1/responses: create, count, retrieve, stream again, cancel, delete, list the input.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest, NotFound
from baton_gateway.api.chat import prompt_of
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.model_access import permitted
from baton_gateway.api.prompts.tokenize import encoded
from baton_gateway.api.responses.background import BackgroundResponses
from baton_gateway.api.responses.conversation_state import state_of
from baton_gateway.api.responses.creation import answer_response
from baton_gateway.api.responses.stream_follower import StreamQuery, stream_again
from baton_gateway.api.responses.truncation import fitting_chat
from baton_gateway.durable.response_store import ResponseStore, StoredResponse
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import ErrorResponse, invalid
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.responses import response as responses
from baton_gateway.schemas.responses.conversation import Deleted
from baton_gateway.schemas.responses.events import AnyEvent
from baton_gateway.schemas.responses.include_query import query_fields
from baton_gateway.schemas.responses.item_list import ItemList, PageQuery, page_of
from baton_gateway.schemas.responses.request import ResponsesRequest

router = APIRouter()


@router.post("/v1/responses")
@describe(ResponsesRequest, responses.Response, events=AnyEvent)
async def create(request: Request) -> Response:
    """Answer a conversation in one response, streamed or in the background."""
    return await answer_response(request, await read(request, ResponsesRequest))


@router.post("/v1/responses/input_tokens")
@describe(ResponsesRequest, responses.CountedInput)
async def count_input_tokens(request: Request) -> Response:
    """Return the number of tokens of a prompt, without generating."""
    body = await read(request, ResponsesRequest)
    model_info = await permitted(request, body.model)
    chat = await fitting_chat(request, body, await state_of(request, body))
    ids = await encoded(request, model_info, prompt_of(chat), "input")
    return json_response(responses.CountedInput(len(ids)))


@router.post("/v1/responses/compact", include_in_schema=False)
@describe(answer=ErrorResponse)
async def compact() -> Response:
    """Refuse to compact a conversation."""
    raise NotFound("Conversations are not compacted here. Send 'truncation': 'auto'.")


@router.get("/v1/responses/{name}")
@describe(answer=responses.Response)
async def retrieve(request: Request, name: str) -> Response:
    """Return a stored response, or the events of a background response."""
    query = build(query_fields(request.query_params.multi_items()), StreamQuery)
    stored = await _stored(request, name)
    if not query.stream:
        return json_response(stored.response)
    if not stored.response["background"]:
        raise invalid(
            "stream",
            "Only responses that were created with 'background': true can be streamed again.",
        )
    return await stream_again(request, name, query.starting_after)


@router.post("/v1/responses/{name}/cancel")
@describe(answer=responses.Response)
async def cancel(request: Request, name: str) -> Response:
    """Cancel a background response; one that has ended is unchanged."""
    if not (await _stored(request, name)).response["background"]:
        raise InvalidRequest(
            "Only responses that were created with 'background': true can be cancelled."
        )
    background: BackgroundResponses = request.app.state.background
    return json_response((await background.cancel(name, tenant_of(request))).response)


@router.delete("/v1/responses/{name}")
@describe(answer=Deleted)
async def delete(request: Request, name: str) -> Response:
    """Delete a stored response; a running one is cancelled."""
    if (await _stored(request, name)).running:
        background: BackgroundResponses = request.app.state.background
        await background.cancel(name, tenant_of(request))
    await ResponseStore(request.app.state.objects).delete(name, tenant_of(request))
    return json_response(Deleted(id=name, object="response"))


@router.get("/v1/responses/{name}/input_items")
@describe(answer=ItemList)
async def input_items(request: Request, name: str) -> Response:
    """List the input items of a stored response, including those of the conversation before it."""
    query = build(query_fields(request.query_params.multi_items()), PageQuery)
    return json_response(page_of((await _stored(request, name)).input, query))


async def _stored(request: Request, name: str) -> StoredResponse:
    return await ResponseStore(request.app.state.objects).get(name, tenant_of(request))
