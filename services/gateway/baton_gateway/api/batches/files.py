"""/v1/files: uploads of clients, and the files that batches write.

https://platform.openai.com/docs/api-reference/files
"""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from baton_gateway.api.batches.multipart import upload
from baton_gateway.api.batches.pages import page
from baton_gateway.api.documentation.description import describe
from baton_gateway.durable.file_store import FileStore, StoredFile
from baton_gateway.http.body import build
from baton_gateway.http.json_response import json_response
from baton_gateway.http.middleware import tenant_of
from baton_gateway.schemas.batches.files import (
    DeletedFile,
    FileFields,
    FileList,
    FileObject,
    FileQuery,
)

router = APIRouter()


@router.post("/v1/files")
@describe(answer=FileObject, form=FileFields)
async def create(request: Request) -> Response:
    """Upload a file as multipart form data: `file` and `purpose`."""
    fields, file = await upload(request)
    async with file:
        about = build(fields, FileFields)
        seconds = about.expires_after_seconds
        name = await store(request).begin(
            tenant_of(request),
            file.filename,
            about.purpose,
            None if seconds is None else time.time() + seconds,
        )
        return json_response(described(await file.save(store(request), name)))


@router.get("/v1/files")
@describe(answer=FileList)
async def files(request: Request) -> Response:
    """List the files of the API key."""
    query = build(dict(request.query_params), FileQuery)
    files = await store(request).list(tenant_of(request), query.purpose)
    some, more = page([described(file) for file in files], query)
    first, last = (some[0].id, some[-1].id) if some else (None, None)
    return json_response(FileList(data=some, first_id=first, last_id=last, has_more=more))


@router.get("/v1/files/{name}")
@describe(answer=FileObject)
async def retrieve(request: Request, name: str) -> Response:
    """Describe a file."""
    return json_response(described(await store(request).get(name, tenant_of(request))))


@router.get("/v1/files/{name}/content")
@describe(media_type="application/octet-stream")
async def content(request: Request, name: str) -> Response:
    """Return the content of a file."""
    file = await store(request).get(name, tenant_of(request))
    headers = {"content-length": str(file.num_bytes), "x-content-type-options": "nosniff"}
    return StreamingResponse(
        store(request).read(name), media_type="application/octet-stream", headers=headers
    )


@router.delete("/v1/files/{name}")
@describe(answer=DeletedFile)
async def delete(request: Request, name: str) -> Response:
    """Delete a file."""
    await store(request).delete(name, tenant_of(request))
    return json_response(DeletedFile(id=name))


def store(request: Request) -> FileStore:
    """Return the store of files."""
    store: FileStore = request.app.state.files
    return store


def described(file: StoredFile) -> FileObject:
    """Return a stored file as clients see it."""
    return FileObject(
        id=file.id,
        bytes=file.num_bytes,
        created_at=int(file.created),
        expires_at=None if file.expires is None else int(file.expires),
        filename=file.filename,
        purpose=file.purpose,
    )
