"""/v1/uploads: large files in parts.

https://platform.openai.com/docs/api-reference/uploads
"""

from __future__ import annotations

import time

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from baton.errors import InvalidRequest
from baton_gateway.api.batches.files import described
from baton_gateway.api.batches.multipart import upload as received
from baton_gateway.api.documentation.description import describe
from baton_gateway.config import Config
from baton_gateway.durable.file_store import StoredFile
from baton_gateway.durable.upload_store import StoredUpload, UploadStore
from baton_gateway.http.body_reader import read
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.batches.uploads import (
    CompleteUploadRequest,
    CreateUploadRequest,
    Upload,
    UploadPart,
)

router = APIRouter()
_LIFE_SECONDS = 86_400
"""Same as the time for which `FileStore` keeps incomplete files."""


class PartFields(BaseModel):
    """Fields of a part next to `data`: none."""


@router.post("/v1/uploads")
@describe(CreateUploadRequest, Upload)
async def create(request: Request) -> Response:
    """Create an upload in parts."""
    body = await read(request, CreateUploadRequest)
    config: Config = request.app.state.config
    if body.bytes > config.max_file_bytes:
        raise InvalidRequest(
            f"The file is too large. Send at most {config.max_file_bytes} bytes.",
            code="request_too_large",
            param="bytes",
            status=413,
        )
    new = await _store(request).begin(tenant_of(request), body.filename, body.purpose, body.bytes)
    return json_response(_upload(new))


@router.post("/v1/uploads/{name}/parts")
@describe(answer=UploadPart, form=PartFields, file="data")
async def add_part(request: Request, name: str) -> Response:
    """Add a part, as the file `data` of a multipart form."""
    await _store(request).get(name, tenant_of(request))
    _, file = await received(request, "data")
    async with file:
        part = await _store(request).add_part(name, tenant_of(request), file.parts())
    return json_response(UploadPart(id=part, created_at=int(time.time()), upload_id=name))


@router.post("/v1/uploads/{name}/complete")
@describe(CompleteUploadRequest, Upload)
async def complete(request: Request, name: str) -> Response:
    """Complete an upload: join the parts in the order of `part_ids`."""
    body = await read(request, CompleteUploadRequest)
    upload, file = await _store(request).complete(name, tenant_of(request), body.part_ids, body.md5)
    return json_response(_upload(upload, file))


@router.post("/v1/uploads/{name}/cancel")
@describe(answer=Upload)
async def cancel(request: Request, name: str) -> Response:
    """Cancel an upload."""
    return json_response(_upload(await _store(request).cancel(name, tenant_of(request))))


def _upload(stored: StoredUpload, file: StoredFile | None = None) -> Upload:
    created = int(stored.created)
    return Upload(
        id=stored.id,
        bytes=stored.num_bytes,
        created_at=created,
        expires_at=created + _LIFE_SECONDS,
        filename=stored.filename,
        purpose=stored.purpose,
        status=stored.status,
        file=None if file is None else described(file),
    )


def _store(request: Request) -> UploadStore:
    store: UploadStore = request.app.state.uploads
    return store
