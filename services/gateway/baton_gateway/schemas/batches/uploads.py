"""Requests and responses of OpenAI's uploads API.

https://platform.openai.com/docs/api-reference/uploads
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import Field

from baton_gateway.schemas.base import Request
from baton_gateway.schemas.batches.files import FileObject, Purpose


class CreateUploadRequest(Request):
    """POST /v1/uploads"""

    filename: str = Field(min_length=1, max_length=256)
    purpose: Purpose
    bytes: int = Field(ge=0)
    mime_type: str = Field(max_length=256)


class CompleteUploadRequest(Request):
    """POST /v1/uploads/{id}/complete"""

    part_ids: Annotated[list[str], Field(max_length=10_000)]
    md5: str = Field(default="", max_length=32)


class Upload(msgspec.Struct, kw_only=True):
    """An upload."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    file: FileObject | None = None
    """The resulting file."""


class UploadPart(msgspec.Struct, kw_only=True):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
