"""/v1/messages/batches: many messages, run after all other requests.

https://docs.anthropic.com/en/api/creating-message-batches
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from baton.errors import InvalidRequest
from baton_gateway.api.anthropic.batch_view import KEPT_SECONDS, described
from baton_gateway.api.batches.batches import cancelled
from baton_gateway.api.batches.batches import store as batches
from baton_gateway.api.batches.files import store as files
from baton_gateway.api.documentation.description import describe
from baton_gateway.batches.message_results import message_lines
from baton_gateway.config import Config
from baton_gateway.durable.batch_record import MESSAGES, Batch
from baton_gateway.durable.batch_store import Line, StoredBatch
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import array_too_long, invalid
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import quota_of, tenant_of
from baton_gateway.schemas.anthropic.batches import (
    CreateMessageBatchRequest,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchList,
    MessageBatchQuery,
)

router = APIRouter()
_WINDOW_HOURS = 24


@router.post("/v1/messages/batches")
@describe(CreateMessageBatchRequest, MessageBatch)
async def create(request: Request) -> Response:
    """Create a batch of messages."""
    body = await read(request, CreateMessageBatchRequest)
    config: Config = request.app.state.config
    if len(body.requests) > config.max_batch_lines:
        raise array_too_long("requests", config.max_batch_lines)
    new = StoredBatch(_batch(), tenant_of(request), quota_of(request).key.name)
    lines = [
        Line(number, entry.custom_id, msgspec.json.encode(entry.params))
        for number, entry in enumerate(body.requests)
    ]
    await batches(request).add(new, lines)
    return await _answer(request, new.batch.id)


@router.get("/v1/messages/batches")
@describe(answer=MessageBatchList)
async def message_batches(request: Request) -> Response:
    """List the message batches of the API key, the latest first."""
    query = build(dict(request.query_params), MessageBatchQuery)
    stored = await batches(request).stored_list(tenant_of(request))
    ours = [batch for batch in stored[::-1] if batch.batch.endpoint == MESSAGES]
    some, more = _page(ours, query)
    data = [_described(request, batch) for batch in some]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(MessageBatchList(data=data, first_id=first, last_id=last, has_more=more))


@router.get("/v1/messages/batches/{name}")
@describe(answer=MessageBatch)
async def retrieve(request: Request, name: str) -> Response:
    """Return a batch with its progress."""
    return await _answer(request, name)


@router.get("/v1/messages/batches/{name}/results")
@describe(media_type="application/x-jsonl")
async def results(request: Request, name: str) -> Response:
    """Return a line of JSON for each request of a batch that has ended."""
    batch = (await _get(request, name)).batch
    if not _ended(batch):
        raise InvalidRequest(
            f"Batch {name} has not ended. Ask again once its processing_status is 'ended'."
        )
    names = [
        file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None
    ]
    for file_id in names:  # Raise before the response begins if they have expired.
        await files(request).get(file_id, tenant_of(request))
    return StreamingResponse(_lines(request, names), media_type="application/x-jsonl")


@router.post("/v1/messages/batches/{name}/cancel")
@describe(answer=MessageBatch)
async def cancel(request: Request, name: str) -> Response:
    """Cancel a batch. Messages in flight finish."""
    await _get(request, name)
    await batches(request).change(name, cancelled)
    return await _answer(request, name)


@router.delete("/v1/messages/batches/{name}")
@describe(answer=DeletedMessageBatch)
async def delete(request: Request, name: str) -> Response:
    """Delete a batch that has ended, and its results."""
    batch = (await _get(request, name)).batch
    if not _ended(batch):
        raise InvalidRequest(f"Batch {name} has not ended. Cancel it first.")
    await batches(request).delete(name)
    return json_response(DeletedMessageBatch(name))


def _batch() -> Batch:
    now = int(time.time())
    return Batch(
        id=f"msgbatch_{secrets.token_hex(16)}",
        endpoint=MESSAGES,
        input_file_id="",
        completion_window=f"{_WINDOW_HOURS}h",
        status="in_progress",
        created_at=now,
        in_progress_at=now,
        expires_at=now + _WINDOW_HOURS * 3600,
        output_expires_after=KEPT_SECONDS,
    )


async def _get(request: Request, name: str) -> StoredBatch:
    return await batches(request).stored(name, tenant_of(request), of_messages=True)


async def _answer(request: Request, name: str) -> Response:
    return json_response(_described(request, await _get(request, name)))


def _described(request: Request, stored: StoredBatch) -> MessageBatch:
    return described(stored.batch, stored.num_unrun, str(request.base_url))


def _ended(batch: Batch) -> bool:
    return batch.status in ("completed", "cancelled", "expired")


async def _lines(request: Request, names: list[str]) -> AsyncIterator[bytes]:
    for name in names:
        async for line in message_lines(files(request).read(name)):
            yield line


def _page(batches: list[StoredBatch], query: MessageBatchQuery) -> tuple[list[StoredBatch], bool]:
    """Return a page of batches, and whether there are more in its direction."""
    ids = [stored.batch.id for stored in batches]
    for param in ("after_id", "before_id"):
        name = getattr(query, param)
        if name is not None and name not in ids:
            raise invalid(param, f"Invalid '{param}': there is no such batch.")
    if query.before_id is not None:
        end = ids.index(query.before_id)
        return batches[max(0, end - query.limit) : end], end > query.limit
    start = 0 if query.after_id is None else ids.index(query.after_id) + 1
    return batches[start : start + query.limit], start + query.limit < len(batches)
