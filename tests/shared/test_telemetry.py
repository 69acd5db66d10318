from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton.telemetry import span, start, traceparent


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def test_a_trace_goes_on_across_services(exported: InMemorySpanExporter) -> None:
    request = start("request")
    with span("encode", parent=traceparent(request), attributes={"tokens": 3}):
        pass
    request.end()
    child, parent = exported.get_finished_spans()
    assert child.context.trace_id == parent.context.trace_id
    assert child.parent is not None and child.parent.span_id == parent.context.span_id
    assert dict(child.attributes or {}) == {"tokens": 3}


@pytest.mark.parametrize("header", ["", "garbage", "00-x-y-01", "00-" + "0" * 32 + "-1-1", "a-b-c"])
def test_a_bad_traceparent_starts_a_trace_of_its_own(
    exported: InMemorySpanExporter, header: str
) -> None:
    with span("encode", parent=header):
        pass
    [only] = exported.get_finished_spans()
    assert only.parent is None


def test_without_an_exporter_nothing_is_sent() -> None:
    with span("request") as current:
        assert traceparent(current) == ""
