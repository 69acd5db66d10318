"""Names of the metrics that the gateway exports."""

from __future__ import annotations

import re

from baton.protocol import RoleStats, Stats, WorkerStats
from baton_gateway.observability.metrics import Metrics, SystemCollector


def exported() -> set[str]:
    """Every sample name that a gateway exports once a worker has joined."""
    return set(re.findall(r"^(baton_\w+)", _text(), re.MULTILINE))


def families() -> set[str]:
    """Every name that a gateway declares, a histogram under its name alone."""
    return set(re.findall(r"^# TYPE (baton_\w+)", _text(), re.MULTILINE))


def _text() -> str:
    metrics = Metrics()
    worker = WorkerStats("w", "both", "ready", "cpu", "float32", 0, 8, 8, 0, 0.0, 0.0, 0, 0)
    role = RoleStats("both", 1, 1, 0.0, 0.0, 0.0, {"kv": 0.0})
    stats = Stats(1, 0, 0, 0, 0, 0, 0, 0.0, 0.0, workers=(worker,), roles=(role,))
    SystemCollector(metrics, lambda: stats)
    metrics.requests.labels("/v1/models", "200").inc()
    return metrics.text().decode()
