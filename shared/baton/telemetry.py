"""OpenTelemetry traces: one per request across all services; off unless an endpoint is set.

The context is a W3C traceparent string in the envelope of a message. Without an endpoint the SDK is
not imported and a span costs a function call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from baton import __version__
from baton.errors import SettingsError

Attributes = Mapping[str, str | int | float | bool]


def configure(service: str, endpoint: str) -> None:
    """Export spans of this process to an OTLP/HTTP collector; do nothing without an endpoint."""
    if not endpoint:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise SettingsError(
            "Tracing needs the telemetry extra: pip install 'baton-serve[telemetry]'."
        ) from error
    resource = Resource.create({"service.name": f"baton-{service}", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=2)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4096))
    trace.set_tracer_provider(provider)


def start(
    name: str, parent: str = "", attributes: Attributes | None = None, since: int | None = None
) -> Span:
    """Start a span under a traceparent; the caller ends it.

    `since` is its start in nanoseconds of `time.time_ns`; None means now.
    """
    context = None
    remote = _parse(parent)
    if remote is not None:
        context = set_span_in_context(NonRecordingSpan(remote))
    return trace.get_tracer("baton").start_span(
        name, context=context, attributes=attributes, start_time=since
    )


@contextmanager
def span(name: str, parent: str = "", attributes: Attributes | None = None) -> Iterator[Span]:
    """Context manager for a span around a block."""
    current = start(name, parent, attributes)
    try:
        yield current
    finally:
        current.end()


def traceparent(current: Span) -> str:
    """W3C traceparent of the span, or empty if it is not recorded."""
    context = current.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _parse(header: str) -> SpanContext | None:
    """Parse a W3C traceparent (https://www.w3.org/TR/trace-context/); None if it is invalid."""
    parts = header.split("-")
    if len(parts) != 4 or [len(p) for p in parts] != [2, 32, 16, 2]:
        return None
    try:
        trace_id, span_id, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
