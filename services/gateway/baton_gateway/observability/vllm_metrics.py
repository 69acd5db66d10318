"""Our metrics under the names and labels of vLLM, for vLLM's dashboards.

https://docs.vllm.ai/en/latest/design/metrics.html
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_OURS, _THEIRS = "baton_", "vllm:"
_SAME = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "request_prompt_tokens",
    "request_generation_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "websocket_connections",
    "websocket_connections_active",
    "websocket_connection_duration_seconds",
)
_OLDER = {
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
}
"""Older names of vLLM for the same metrics, which dashboards still use."""


def vllm_text(registry: CollectorRegistry, models: Sequence[str]) -> bytes:
    """Return the metrics of a registry that vLLM also has, in Prometheus' text format.

    Args:
        models: names of the served models; several are joined to one label, since the metrics are
            not counted per model.
    """
    renamed = CollectorRegistry(auto_describe=False)
    renamed.register(_Renamed(registry.collect(), {"model_name": ",".join(models), "engine": "0"}))
    return generate_latest(renamed)


class _Renamed(Collector):
    """Renames metrics and adds labels."""

    def __init__(self, metrics: Iterable[Metric], labels: dict[str, str]) -> None:
        self._metrics, self._labels = metrics, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that vLLM has."""
        for metric in self._metrics:
            name = metric.name.removeprefix(_OURS)
            if name in _SAME:
                yield self._renamed(metric, name)
            if name in _OLDER:
                yield self._renamed(metric, _OLDER[name])

    def _renamed(self, metric: Metric, name: str) -> Metric:
        new = Metric(_THEIRS + name, metric.documentation, metric.type)
        for sample in metric.samples:
            suffix = sample.name.removeprefix(metric.name)
            labels = {**self._labels, **sample.labels}
            new.samples.append(Sample(f"{new.name}{suffix}", labels, sample.value))
        return new
