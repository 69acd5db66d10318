from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton.protocol import NewSequence, Sampling
from baton_scheduler.observability.spans import Spans

PARENT = f"00-{7:032x}-{9:016x}-01"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def entering(parent: str) -> NewSequence:
    return NewSequence(0, b"", 0, Sampling(max_tokens=1), "req", parent)


def test_the_time_in_the_queue_is_one_span_of_the_request(exported: InMemorySpanExporter) -> None:
    spans = Spans()
    spans.arrived(PARENT)
    spans.arrived(PARENT)
    spans.started([entering(PARENT), entering(PARENT)])
    [span] = exported.get_finished_spans()
    assert span.name == "queue" and span.context.trace_id == 7
    assert span.start_time is not None and span.end_time is not None
    assert span.start_time <= span.end_time


def test_untraced_requests_leave_nothing(exported: InMemorySpanExporter) -> None:
    spans = Spans()
    spans.arrived("")
    spans.started([entering("")])
    assert not exported.get_finished_spans() and not spans._since


def test_what_never_starts_is_forgotten_in_the_end() -> None:
    spans = Spans()
    for number in range(5000):
        spans.arrived(f"{number}")
    assert len(spans._since) == 4096
