"""A batch in its stored form, which is also that of OpenAI's API.

https://platform.openai.com/docs/api-reference/batch/object
"""

from __future__ import annotations

from typing import Literal

import msgspec

UNRUN = EXPIRED, CANCELLED = "batch_expired", "batch_cancelled"
"""Codes of lines that were not run before their batch ended."""
MESSAGES = "/v1/messages"
"""Endpoint of batches created through Anthropic's API, which OpenAI's API does not list."""


class RequestCounts(msgspec.Struct, frozen=True):
    """`request_counts`: progress in lines."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(msgspec.Struct, frozen=True):
    """Why a batch cannot run."""

    code: str
    message: str
    line: int | None = None
    """1-based line of the input file."""
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True):
    """`errors`"""

    data: list[BatchError]
    object: Literal["list"] = "list"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are Unix times in seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: str
    """validating, failed, in_progress, finalizing, completed, expired, cancelling, cancelled"""
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None
    output_expires_after: int | None = None
    """Seconds after `created_at`."""
