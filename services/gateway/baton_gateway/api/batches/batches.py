"""/v1/batches: many requests in one file, run after all other requests.

https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import secrets
import time
from typing import Literal

import msgspec
from fastapi import APIRouter
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.batches.files import store as files
from baton_gateway.api.batches.pages import page
from baton_gateway.api.documentation.description import describe
from baton_gateway.durable.batch_record import MESSAGES, Batch
from baton_gateway.durable.batch_store import BatchStore, StoredBatch
from baton_gateway.http.body import build
from baton_gateway.http.body_reader import read
from baton_gateway.http.errors import invalid
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import quota_of, tenant_of
from baton_gateway.schemas.batches.batches import CreateBatchRequest
from baton_gateway.schemas.batches.files import FileQuery

router = APIRouter()
_CANCELLABLE = frozenset({"validating", "in_progress"})


class BatchList(msgspec.Struct, kw_only=True):
    """A page of batches, the latest first."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("/v1/batches")
@describe(CreateBatchRequest, Batch)
async def create(request: Request) -> Response:
    """Create a batch from a file of requests."""
    body = await read(request, CreateBatchRequest)
    file = await files(request).get(body.input_file_id, tenant_of(request))
    if file.purpose != "batch":
        raise invalid(
            "input_file_id", "Invalid 'input_file_id': upload it with the purpose 'batch'."
        )
    now = int(time.time())
    expires = body.output_expires_after
    batch = Batch(
        id=f"batch_{secrets.token_hex(16)}",
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        completion_window=body.completion_window,
        status="validating",
        created_at=now,
        expires_at=now + body.seconds,
        metadata=body.metadata or None,
        output_expires_after=None if expires is None else expires.seconds,
    )
    await store(request).add(StoredBatch(batch, tenant_of(request), quota_of(request).key.name))
    return json_response(batch)


@router.get("/v1/batches")
@describe(answer=BatchList)
async def batches(request: Request) -> Response:
    """List the batches of the API key."""
    query = build({"limit": "20", **request.query_params}, FileQuery)
    batches = await store(request).stored_list(tenant_of(request))
    some, more = page([batch.batch for batch in batches if batch.batch.endpoint != MESSAGES], query)
    first, last = (some[0].id, some[-1].id) if some else (None, None)
    return json_response(BatchList(data=some, first_id=first, last_id=last, has_more=more))


@router.get("/v1/batches/{name}")
@describe(answer=Batch)
async def retrieve(request: Request, name: str) -> Response:
    """Return a batch with its progress."""
    return json_response((await _get(request, name)).batch)


@router.post("/v1/batches/{name}/cancel")
@describe(answer=Batch)
async def cancel(request: Request, name: str) -> Response:
    """Cancel a batch. Lines in flight finish, and their results are kept."""
    await _get(request, name)
    return json_response(await store(request).change(name, cancelled))


def cancelled(batch: Batch) -> Batch:
    """Return the batch with the status of one that is to be cancelled."""
    if batch.status not in _CANCELLABLE:
        return batch
    return structs.replace(batch, status="cancelling", cancelling_at=int(time.time()))


async def _get(request: Request, name: str) -> StoredBatch:
    return await store(request).stored(name, tenant_of(request), of_messages=False)


def store(request: Request) -> BatchStore:
    """Return the store of batches."""
    store: BatchStore = request.app.state.batches
    return store
