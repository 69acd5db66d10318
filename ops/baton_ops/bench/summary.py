"""Summary of a run, with the metric names of `vllm bench serve`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from baton_ops.bench.load_generator import Outcome


@dataclass(frozen=True)
class Latency:
    """Latency statistics in milliseconds; zero without samples."""

    mean: float
    median: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Create from samples in seconds."""
        if not seconds:
            return cls(0.0, 0.0, 0.0)
        values = np.asarray(seconds) * 1000
        p99 = float(np.percentile(values, 99))
        return cls(float(values.mean()), float(np.median(values)), p99)


@dataclass(frozen=True)
class Summary:
    """Summary of one run. Throughputs are per second of `duration` and exclude failed requests."""

    successful: int
    failed: int
    duration: float
    """Seconds from the first request to the end of the last."""
    input_tokens: int
    output_tokens: int
    request_throughput: float
    output_throughput: float
    peak_output_throughput: float
    """Most tokens in any whole second."""
    total_throughput: float
    peak_concurrent: int
    ttft: Latency
    """Time to the first token."""
    tpot: Latency
    """Time per output token of a request, excluding the first."""
    itl: Latency
    """Time between two chunks."""
    e2el: Latency
    """Time to the last token."""
    errors: dict[str, int]
    """Number of failures by error."""


def summarise(outcomes: Sequence[Outcome]) -> Summary:
    """Summarise the outcomes of a run."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    started = min((o.started for o in outcomes), default=0.0)
    duration = max((o.ended for o in outcomes), default=0.0) - started
    input_tokens = sum(o.input_tokens for o in good)
    output_tokens = sum(o.output_tokens for o in good)
    per_second = 1 / duration if duration > 0 else 0.0
    return Summary(
        successful=len(good),
        failed=len(outcomes) - len(good),
        duration=duration,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        request_throughput=len(good) * per_second,
        output_throughput=output_tokens * per_second,
        peak_output_throughput=_peak_rate(good, started),
        total_throughput=(input_tokens + output_tokens) * per_second,
        peak_concurrent=_peak_concurrent(outcomes),
        ttft=Latency.of([o.arrivals[0] - o.started for o in good]),
        tpot=Latency.of([_per_token(o) for o in good if o.output_tokens > 1]),
        itl=Latency.of([gap for o in good for gap in np.diff(o.arrivals)]),
        e2el=Latency.of([o.arrivals[-1] - o.started for o in good]),
        errors=dict(Counter(o.error for o in outcomes if o.error is not None)),
    )


def _per_token(outcome: Outcome) -> float:
    return (outcome.arrivals[-1] - outcome.arrivals[0]) / (outcome.output_tokens - 1)


def _peak_rate(good: Iterable[Outcome], started: float) -> float:
    """Return the peak token rate. Each chunk counts as its request's average number of tokens."""
    seconds: defaultdict[int, float] = defaultdict(float)
    for outcome in good:
        share = outcome.output_tokens / len(outcome.arrivals)
        for at in outcome.arrivals:
            seconds[int(at - started)] += share
    return max(seconds.values(), default=0.0)


def _peak_concurrent(outcomes: Iterable[Outcome]) -> int:
    """Return the peak concurrency. At the same instant, ends count before starts."""
    changes = sorted(
        change for o in outcomes for change in ((o.started, 1), (max(o.ended, o.started), -1))
    )
    running = peak = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak


_LATENCIES = (
    ("Time to First Token", "TTFT", "ttft"),
    ("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
    ("Inter-token Latency", "ITL", "itl"),
    ("End-to-end Latency", "E2EL", "e2el"),
)
_COUNTS = (
    ("Successful requests", "successful", "{:,d}"),
    ("Failed requests", "failed", "{:,d}"),
    ("Benchmark duration (s)", "duration", "{:.2f}"),
    ("Total input tokens", "input_tokens", "{:,d}"),
    ("Total generated tokens", "output_tokens", "{:,d}"),
    ("Request throughput (req/s)", "request_throughput", "{:.2f}"),
    ("Output token throughput (tok/s)", "output_throughput", "{:.2f}"),
    ("Peak output token throughput (tok/s)", "peak_output_throughput", "{:.2f}"),
    ("Peak concurrent requests", "peak_concurrent", "{:,d}"),
    ("Total token throughput (tok/s)", "total_throughput", "{:.2f}"),
)


def table(runs: Sequence[tuple[str, Summary]]) -> Table:
    """Return a table of all runs with a column each."""
    grid = Table(title="Serving Benchmark Result", title_justify="left")
    grid.add_column("", no_wrap=True)
    for name, _ in runs:
        grid.add_column(name, justify="right", no_wrap=True)
    for label, name, form in _COUNTS:
        cells = [form.format(getattr(summary, name)) for _, summary in runs]
        style = "red" if name == "failed" and any(s.failed for _, s in runs) else None
        grid.add_row(label, *cells, style=style)
    for title, short, name in _LATENCIES:
        grid.add_section()
        grid.add_row(title, style="dim")
        for part in ("mean", "median", "p99"):
            cells = [f"{getattr(getattr(summary, name), part):.2f}" for _, summary in runs]
            grid.add_row(f"{part.capitalize()} {short} (ms)", *cells)
    return grid
