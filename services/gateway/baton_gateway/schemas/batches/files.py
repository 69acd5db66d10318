"""Requests and responses of OpenAI's files API.

https://platform.openai.com/docs/api-reference/files
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

Purpose = Literal["batch", "user_data", "vision"]


class FileFields(BaseModel):
    """Fields of an upload besides the file itself. Multipart fields are text."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    purpose: Purpose
    expires_after_anchor: Literal["created_at"] | None = Field(
        default=None, alias="expires_after[anchor]"
    )
    expires_after_seconds: Annotated[int, Field(ge=3600, le=2_592_000)] | None = Field(
        default=None, alias="expires_after[seconds]"
    )


class FileQuery(BaseModel):
    """Query of the list of files, or of batches."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    purpose: str | None = None


class FileObject(msgspec.Struct, kw_only=True):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(msgspec.Struct, kw_only=True):
    """Response of DELETE /v1/files/{id}."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
