"""Requests and responses of message batches.

https://docs.anthropic.com/en/api/creating-message-batches
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.base import Request

_MOST = 100_000


class BatchEntry(BaseModel):
    """One of `requests`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    custom_id: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    params: dict[str, Any]
    """Body of a /v1/messages request. Its errors become the result of its line."""


class CreateMessageBatchRequest(Request):
    """POST /v1/messages/batches"""

    requests: Annotated[list[BatchEntry], Field(min_length=1, max_length=_MOST)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        custom_ids = set[str]()
        for i, entry in enumerate(self.requests):
            if entry.custom_id in custom_ids:
                raise invalid(
                    f"requests[{i}].custom_id",
                    f"Invalid 'requests[{i}].custom_id': '{entry.custom_id}' appears twice.",
                )
            if entry.params.get("stream"):
                raise invalid(
                    f"requests[{i}].params.stream",
                    f"Invalid 'requests[{i}].params.stream': answers of a batch are not streamed.",
                )
            custom_ids.add(entry.custom_id)
        return self


class MessageBatchQuery(BaseModel):
    """Query of the list of batches."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


class MessageBatchCounts(msgspec.Struct, frozen=True):
    """`request_counts`: all requests are `processing` until the whole batch has ended."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(msgspec.Struct, kw_only=True, tag_field="type", tag="message_batch"):
    """A batch. Times are RFC 3339."""

    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    archived_at: str | None
    cancel_initiated_at: str | None
    results_url: str | None


class MessageBatchList(msgspec.Struct, kw_only=True):
    """A page of batches, the latest first."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(msgspec.Struct, tag_field="type", tag="message_batch_deleted"):
    """Response of DELETE /v1/messages/batches/{id}."""

    id: str
