"""Batches as Anthropic's API describes them."""

from __future__ import annotations

from msgspec import structs

from baton_gateway.api.anthropic.batch_view import described
from baton_gateway.durable.batch_record import MESSAGES, Batch, RequestCounts

BATCH = Batch(
    id="msgbatch_1", endpoint=MESSAGES, input_file_id="", completion_window="24h",
    status="in_progress", created_at=1_700_000_000, expires_at=1_700_086_400,
    request_counts=RequestCounts(total=5, completed=2, failed=3),
)  # fmt: skip


def test_counts_are_those_of_a_batch_that_has_ended() -> None:
    running = described(BATCH, 0, "http://h/")
    assert running.processing_status == "in_progress" and running.request_counts.processing == 5
    assert running.created_at == "2023-11-14T22:13:20Z" and running.results_url is None
    stopping = structs.replace(BATCH, cancelling_at=1_700_000_005)
    assert described(stopping, 0, "http://h/").processing_status == "canceling"
    over = described(structs.replace(stopping, cancelled_at=1_700_000_009), 2, "http://h/")
    counts = over.request_counts
    assert (counts.succeeded, counts.errored, counts.canceled, counts.expired) == (2, 1, 2, 0)
    assert over.results_url == "http://h/v1/messages/batches/msgbatch_1/results"
    assert over.archived_at == "2023-12-13T22:13:20Z"
    late = described(structs.replace(BATCH, expired_at=1_700_086_400), 3, "http://h")
    assert late.request_counts.expired == 3 and late.request_counts.errored == 0
