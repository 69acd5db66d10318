"""Stored batches in the format of Anthropic's API."""

from __future__ import annotations

from datetime import UTC, datetime

from baton_gateway.durable.batch_record import Batch
from baton_gateway.schemas.anthropic.batches import MessageBatch, MessageBatchCounts

KEPT_SECONDS = 29 * 86_400
"""Seconds for which results are kept."""


def described(batch: Batch, num_unrun: int, root: str) -> MessageBatch:
    """Describe a stored batch.

    Args:
        num_unrun: lines that ended without running.
        root: URL under which /v1 lies.
    """
    ended = batch.completed_at or batch.cancelled_at or batch.expired_at
    expires_at = batch.created_at + KEPT_SECONDS
    url = f"{root.rstrip('/')}/v1/messages/batches/{batch.id}/results"
    cancelling = batch.cancelling_at is not None
    return MessageBatch(
        id=batch.id,
        processing_status="ended" if ended else "canceling" if cancelling else "in_progress",
        request_counts=_counts(batch, num_unrun, over=bool(ended)),
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=_time(ended) if ended else None,
        archived_at=_time(expires_at) if expires_at <= datetime.now(UTC).timestamp() else None,
        cancel_initiated_at=_time(batch.cancelling_at) if batch.cancelling_at else None,
        results_url=url if ended else None,
    )


def _counts(batch: Batch, num_unrun: int, *, over: bool) -> MessageBatchCounts:
    counts = batch.request_counts
    if not over:
        return MessageBatchCounts(processing=counts.total)
    return MessageBatchCounts(
        succeeded=counts.completed,
        errored=counts.failed - num_unrun,
        canceled=num_unrun if batch.cancelled_at else 0,
        expired=num_unrun if batch.expired_at else 0,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
