"""Prometheus metrics of one gateway, and of the system as reported by its scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton.protocol import PhaseTimes, Stats, WorkerStats
from baton_gateway.observability.instruments import FastCounter, FastHistogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_INTERVALS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)
_LENGTHS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)
_PHASES = {
    "queue": "A choice's wait for its first worker.",
    "prefill": "From there to its first token.",
    "decode": "From there to its last one, without waits.",
}
_TOTALS = (
    ("num_preemptions", "Sequences that had to make room and were run again."),
    ("finished", "Sequences that ended."),
    ("worker_losses", "Workers that went silent."),
    ("dropped_frames", "Frames that the scheduler dropped: unreadable, or of an unknown peer."),
    ("handoffs", "Running sequences that changed their worker, with their KV."),
    ("failed_transfers", "Transfers of KV that failed; the tokens were computed again."),
    ("stale_results", "Results of an older incarnation, dropped."),
    ("transferred_tokens", "Tokens whose KV were pulled from another worker."),
    ("media_encoded", "Images that encode workers have encoded."),
    ("media_encoded_locally", "Images that workers which prefill have encoded."),
    ("media_shared", "Images that needed no encoding: encoded for another one, or in a cache."),
    ("media_retried", "Images that were encoded again, since their encode worker was lost."),
    ("media_pulled", "Transfers of embeddings from encode workers."),
    ("media_pulls_failed", "Such transfers that failed; the images were encoded again."),
)
_SCALE = (
    ("desired_workers", "desired", "Workers of a role that would hold every target."),
    ("ready_workers", "ready", "Workers of a role that take work."),
    ("queue_seconds", "queue_seconds", "How long work waits for a role."),
    ("ttft_seconds", "ttft_seconds", "Moving average from arrival to first token."),
    ("itl_seconds", "itl_seconds", "Moving average from token to token of a sequence."),
)


# Disable the `_created` series, which double the number of series.
disable_created_metrics()


class Metrics:
    """Metrics with their own registry, so that two gateways can share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._init_requests()
        self._init_tokens()
        self._init_times()
        self.realtime = RealtimeMetrics(self.registry)

    def _init_requests(self) -> None:
        text = "HTTP requests by route and status."
        self.requests = self._count("requests", text, "route", "status")
        text = "Choices that ended, by their finish reason."
        self.success = self._count("request_success", text, "finished_reason")
        self.aborted = self._count("requests_aborted", "Generations that ended before their end.")
        text = "Generations in flight here."
        self.running = Gauge("baton_gateway_requests", text, registry=self.registry)

    def _init_tokens(self) -> None:
        self.prompt = self._count("prompt_tokens", "Prompt tokens accepted.")
        self.generated = FastCounter("baton_generation_tokens", "Tokens delivered.", self.registry)
        text = "Prompt length in tokens."
        self.prompt_length = self._spread("request_prompt_tokens", text, _LENGTHS)
        text = "Tokens generated for a request."
        self.length = self._spread("request_generation_tokens", text, _LENGTHS)

    def _init_times(self) -> None:
        text = "Request to first token."
        self.first_token = self._spread("time_to_first_token_seconds", text, _SECONDS)
        text, name = "Token to token of one choice.", "baton_inter_token_latency_seconds"
        self.interval = FastHistogram(name, text, _INTERVALS, self.registry)
        text = "Request to last token."
        self.latency = self._spread("e2e_request_latency_seconds", text, _SECONDS)
        self.phases = {
            phase: self._spread(f"request_{phase}_time_seconds", text, _SECONDS)
            for phase, text in _PHASES.items()
        }

    def observe_phases(self, times: PhaseTimes) -> None:
        """Record the phases of a choice, as reported by its scheduler."""
        self.phases["queue"].observe(times.queued)
        self.phases["prefill"].observe(times.prefill)
        self.phases["decode"].observe(times.decode)

    def _count(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"baton_{name}", text, labels, registry=self.registry)

    def _spread(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"baton_{name}", text, buckets=buckets, registry=self.registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class RealtimeMetrics:
    """Metrics of WebSocket sessions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = 0
        """Open sessions of this gateway."""
        names = "baton_websocket_connection"
        self._active = Gauge(f"{names}s_active", "Realtime sessions here.", registry=registry)
        self._total = Counter(f"{names}s", "Realtime sessions that were opened.", registry=registry)
        self._seconds = Histogram(
            f"{names}_duration_seconds",
            "Length of a realtime session.",
            buckets=_SECONDS,
            registry=registry,
        )

    def opened(self) -> None:
        """Count a session that begins."""
        self.open += 1
        self._active.inc()
        self._total.inc()

    def closed(self, seconds: float) -> None:
        """Count a session that ends."""
        self.open -= 1
        self._active.dec()
        self._seconds.observe(seconds)


class Timing:
    """Records latency metrics of one generation."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._interval, self._generated = metrics.interval, metrics.generated
        self._started_at = time.monotonic()
        self._tokens = 0
        self._last: dict[int, float] = {}
        metrics.running.inc()

    def finished(self, reason: str) -> None:
        """Record that a choice has ended."""
        self._metrics.success.labels(reason).inc()

    def started(self, prompt_tokens: int) -> None:
        """Record that the prompts are encoded and valid."""
        self._metrics.prompt.inc(prompt_tokens)
        self._metrics.prompt_length.observe(prompt_tokens)

    def tokens(self, choice: int, count: int) -> None:
        """Record `count` delivered tokens of a choice."""
        now = time.monotonic()
        before = self._last.get(choice)
        if before is not None and count:
            self._interval.observe((now - before) / count)
        elif not self._last:
            self._metrics.first_token.observe(now - self._started_at)
        self._last[choice] = now
        self._tokens += count
        self._generated.value += count

    def ended(self, complete: bool) -> None:
        """Record the end of the generation."""
        self._metrics.running.dec()
        if complete:
            self._metrics.latency.observe(time.monotonic() - self._started_at)
            self._metrics.length.observe(self._tokens)
        else:
            self._metrics.aborted.inc()


class SystemCollector(Collector):
    """Converts the scheduler's last report to metrics on scrape."""

    def __init__(self, metrics: Metrics, stats: Callable[[], Stats | None]) -> None:
        self._stats = stats
        metrics.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields nothing before the first report: no value is better than a wrong zero."""
        stats = self._stats()
        if stats is None:
            return
        yield from _queue(stats)
        for name, text in _TOTALS:
            total = getattr(stats, name.removeprefix("num_"))
            yield CounterMetricFamily(f"baton_{name}", text, total)
        yield from _drafts(stats)
        yield from _transfers(stats)
        yield from _workers(stats)
        yield from _pressure(stats)
        yield from _scale(stats)


def _queue(stats: Stats) -> Iterator[Metric]:
    """What waits and runs, and what of it the prefix cache had."""
    yield GaugeMetricFamily("baton_num_requests_waiting", "Sequences that wait.", stats.waiting)
    text = "Prompt tokens that wait."
    yield GaugeMetricFamily("baton_queue_waiting_tokens", text, stats.waiting_tokens)
    yield GaugeMetricFamily("baton_num_requests_running", "Sequences that run.", stats.running)
    text = "Tokens sampled per second."
    yield GaugeMetricFamily("baton_tokens_per_second", text, stats.tokens_per_second)
    yield CounterMetricFamily("baton_tokens", "Tokens sampled.", stats.tokens)
    text = "Prompt tokens that were looked up in the prefix cache."
    yield CounterMetricFamily("baton_prefix_cache_queries", text, stats.prefix_queries)
    text = "Prompt tokens that were found there."
    yield CounterMetricFamily("baton_prefix_cache_hits", text, stats.prefix_hits)


def _drafts(stats: Stats) -> Iterator[Metric]:
    """Speculation metrics under vLLM's names."""
    per_pos = stats.num_accepted_tokens_per_pos
    for name, total, text in (
        ("drafts", stats.num_drafts, "Rows of steps that verified draft tokens."),
        ("draft_tokens", stats.num_draft_tokens, "Draft tokens that were verified."),
        ("accepted_tokens", sum(per_pos), "Draft tokens that were accepted."),
    ):
        yield CounterMetricFamily(f"baton_spec_decode_num_{name}", text, total)
    family = CounterMetricFamily(
        "baton_spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens that were accepted, by their position in the draft.",
        labels=("position",),
    )
    for position, count in enumerate(per_pos):
        family.add_metric((str(position),), count)
    yield family


def _transfers(stats: Stats) -> Iterator[Metric]:
    """Traffic of each transport between workers."""
    ended = CounterMetricFamily(
        "baton_transfers", "Pulls of KV that ended.", labels=("transport", "outcome")
    )
    moved = CounterMetricFamily(
        "baton_transfer_bytes", "Bytes of KV that arrived.", labels=("transport",)
    )
    took = CounterMetricFamily(
        "baton_transfer_seconds", "Time of the pulls that went well.", labels=("transport",)
    )
    for row in stats.transfers:
        ended.add_metric((row.transport, "done"), row.done)
        ended.add_metric((row.transport, "failed"), row.failed)
        moved.add_metric((row.transport,), row.num_bytes)
        took.add_metric((row.transport,), row.seconds)
    yield from (ended, moved, took)


def _pressure(stats: Stats) -> Iterator[Metric]:
    """Load of all workers, and of each role for autoscalers."""
    usage = GaugeMetricFamily("baton_kv_cache_usage_perc", "Share of KV pages held, 0 to 1.")
    usage.add_metric((), _held_share(stats.workers))
    yield usage
    used = GaugeMetricFamily("baton_kv_used_ratio", "Share of KV pages held.", labels=("role",))
    rows = GaugeMetricFamily("baton_role_running", "Sequences that run.", labels=("role",))
    for role in sorted({w.role for w in stats.workers}):
        workers = [w for w in stats.workers if w.role == role]
        used.add_metric((role,), _held_share(workers))
        rows.add_metric((role,), sum(w.running for w in workers))
    yield used
    yield rows


def _held_share(workers: Sequence[WorkerStats]) -> float:
    """Share of the pages of some workers that sequences hold."""
    total = sum(w.pages_total for w in workers)
    return (total - sum(w.pages_free for w in workers)) / max(total, 1)


def _scale(stats: Stats) -> Iterator[Metric]:
    """Recommended number of workers per role, and the reason."""
    for name, field, text in _SCALE:
        family = GaugeMetricFamily(f"baton_scale_{name}", text, labels=("role",))
        for role in stats.roles:
            family.add_metric((role.role,), getattr(role, field))
        yield family
    parts = GaugeMetricFamily(
        "baton_scale_pressure_ratio", "How many times its target each is.", labels=("role", "part")
    )
    for role in stats.roles:
        for part, ratio in role.pressure.items():
            parts.add_metric((role.role, part), ratio)
    yield parts


def _workers(stats: Stats) -> Iterator[Metric]:
    states = GaugeMetricFamily("baton_workers", "Workers by state.", labels=("state",))
    for state in ("ready", "hung", "draining"):
        states.add_metric((state,), sum(w.state == state for w in stats.workers))
    yield states
    for name, text in (
        ("pages_total", "KV pages of a worker."),
        ("pages_free", "KV pages that no sequence holds."),
        ("pages_cached", "Those of them that still hold a prefix."),
        ("step_ms", "Moving average of a step in milliseconds."),
        ("gap_ms", "Moving average of the wait between two steps while there is work."),
        ("kv_bytes", "Bytes of KV cache."),
        ("weight_bytes", "Bytes of weights."),
    ):
        family = GaugeMetricFamily(
            f"baton_worker_{'kv_' if name.startswith('pages') else ''}{name}",
            text,
            labels=("worker",),
        )
        for worker in stats.workers:
            family.add_metric((worker.name,), getattr(worker, name))
        yield family
    yield from _expert_balance(stats)


def _expert_balance(stats: Stats) -> Iterator[Metric]:
    """Balance of the expert groups, as last measured by each of their workers."""
    even = GaugeMetricFamily(
        "baton_worker_expert_balancedness",
        "Tokens of an average rank of its expert group / tokens of the busiest one.",
        labels=("worker",),
    )
    moved = CounterMetricFamily(
        "baton_worker_expert_rearrangements",
        "How often experts have moved between the ranks of its group.",
        labels=("worker",),
    )
    for worker in stats.workers:
        if worker.expert_balancedness:
            even.add_metric((worker.name,), worker.expert_balancedness)
            moved.add_metric((worker.name,), worker.expert_rearrangements)
    yield from (even, moved)


__all__ = ["Metrics", "SystemCollector", "Timing"]
