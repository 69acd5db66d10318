"""View of the fleet: the scheduler's last report, connected servers, stalled workers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from baton.protocol import ModelStats, Stats
from baton_gateway.clients.connection import Pool

SILENT_SECONDS = 3.0
"""Seconds without a report after which the scheduler is silent; it reports several times a
second."""


@dataclass(slots=True)
class _Progress:
    steps: int
    since: float


@dataclass(slots=True)
class FleetView:
    """Health requires progress: a worker with sequences but no steps is hung, even if it
    responds."""

    hang_seconds: float
    stats: Stats | None = None
    last_heard: float = 0.0
    _progress: dict[str, _Progress] = field(default_factory=dict)

    def report(self, stats: Stats, now: float) -> None:
        """Store a report of the scheduler."""
        progress = {}
        for worker in stats.workers:
            old = self._progress.get(worker.name)
            if old is None or old.steps != worker.steps or not worker.running:
                old = _Progress(worker.steps, now)
            progress[worker.name] = old
        self._progress = progress
        self.stats, self.last_heard = stats, now

    def forget(self) -> None:
        """Discard the report of a lost scheduler."""
        self.stats = None
        self._progress = {}

    @property
    def models(self) -> tuple[ModelStats, ...]:
        """Models that have a worker."""
        return self.stats.models if self.stats else ()

    def silent(self, now: float) -> bool:
        """Return whether the scheduler has not reported for `SILENT_SECONDS`."""
        return self.stats is None or now - self.last_heard > SILENT_SECONDS

    def hung(self, now: float) -> list[str]:
        """Return the names of workers that are busy without progress."""
        workers = self.stats.workers if self.stats else ()
        return [
            w.name
            for w in workers
            if w.state == "hung"
            or (w.running and now - self._progress[w.name].since > self.hang_seconds)
        ]

    def has_ready_worker(self, now: float, model: str = "") -> bool:
        """Return whether a worker, of `model` if given, accepts new sequences. A sleeping worker
        does: they wake it."""
        hung = self.hung(now)
        workers = self.stats.workers if self.stats else ()
        runs = (w for w in workers if w.role != "encode")
        able = (w for w in runs if w.state in ("ready", "asleep") and model in ("", w.model))
        return any(w.name not in hung for w in able)

    def unhealthy_reasons(self, now: float) -> list[str]:
        """Return the reasons why the system is unhealthy; empty when it is healthy."""
        if self.silent(now):
            return ["the scheduler is silent"]
        if self.stats is not None and not self.stats.workers:
            return ["no worker has joined"]
        reasons = [f"worker {name} is hung" for name in self.hung(now)]
        if not reasons and not self.has_ready_worker(now):
            reasons.append("no worker takes new work")
        return reasons

    def workers(self, now: float) -> list[dict[str, Any]]:
        """Return every worker with the field names of `WorkerStats`."""
        hung = self.hung(now)
        rows = []
        for worker in self.stats.workers if self.stats else ():
            row = {name: getattr(worker, name) for name in worker.__struct_fields__}
            rows.append(row | ({"state": "hung"} if worker.name in hung else {}))
        return rows


_NUMBERS = tuple(
    name for name in Stats.__struct_fields__ if name not in {"models", "workers", "incarnation"}
)


def snapshot(fleet: FleetView, pools: dict[str, Pool], me: dict[str, str]) -> dict[str, Any]:
    """Return the state of the system as a JSON object, for the fleet page.

    `services` lists every process with its state and a line of detail, `workers` the fields of
    `WorkerStats`; the numbers of `Stats` are at the top level.
    """
    now = time.monotonic()
    workers = fleet.workers(now)
    services = [me, *_servers(pools)]
    services += [
        {
            "service": "worker",
            "name": w["name"],
            "state": w["state"],
            "detail": f"{w['device']} {w['dtype']}, {w['running']} running",
        }
        for w in workers
    ]
    numbers = {name: getattr(fleet.stats, name, 0) for name in _NUMBERS}
    return {"services": services, "workers": workers, **numbers}


def _servers(pools: dict[str, Pool]) -> list[dict[str, str]]:
    rows = []
    for service, pool in pools.items():
        for number, (was_connected, hello) in enumerate(pool.servers()):
            name = hello.name if hello else f"{service}-{number}"
            state = "ready" if hello else "lost" if was_connected else "starting"
            detail = f"version {hello.version}" if hello else "does not answer"
            rows.append({"service": service, "name": name, "state": state, "detail": detail})
    return rows
