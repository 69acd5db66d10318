"""Stand-in for an engine that sleeps: it holds nothing and runs nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable

from baton.protocol import Grant, Plan, Pull, Pulled, Result, Revoke
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.platform.malloc import release_freed_memory


class SleepingEngine:
    """Replaces an engine without other references; `wake` builds it again, and `load` brings its
    weights back before that."""

    idle = ready = True
    in_flight = False
    in_lockstep = False
    adapters = unread = None
    encoder = None

    def __init__(self, level: int, load: Callable[[], Callable[[], Engine]], progress: int) -> None:
        """`load` is the engine's `sleep`, and `progress` its counter when it fell asleep."""
        self._load, self.progress = load, progress
        self._begin: Callable[[], Engine] | None = load() if level == 1 else None

    @property
    def level(self) -> int:
        """1 if it has its weights, 2 if it has nothing."""
        return 1 if self._begin is not None else 2

    def load(self) -> None:
        """Bring the weights back, without pages."""
        if self._begin is None:
            self._begin = self._load()

    def wake(self) -> Engine:
        """Build the engine again."""
        return (self._begin or self._load())()

    def free(self) -> None:
        """Give the engine's memory back to the system, once nothing refers to it."""
        # The engine is a reference cycle that was frozen for the garbage collector.
        gc.unfreeze()
        gc.collect()
        release_freed_memory()

    def submit(self, plan: Plan, turn: int = 0) -> list[Result]:
        """Raises `PlanError`: a scheduler sends no plans to a worker that sleeps."""
        raise PlanError("A plan has come for a worker that sleeps.")

    def finish(self) -> list[Result]:
        """No step is in flight."""
        return []

    def reset(self) -> None:
        """There is nothing to forget."""

    def run_dummy_step(self) -> bool:
        """No other worker waits for it."""
        return False

    def leave(self) -> None:
        """No other worker waits for it."""

    def close(self) -> None:
        """Nothing runs beside it."""


class NoTransfers:
    """KV transfer of an engine that sleeps: it has no pages."""

    busy = False
    progress = 0

    def take(self, message: Grant | Revoke | Pull) -> None:
        """Ignored: the scheduler takes what the worker was as lost, and its transfers too."""

    def finished(self) -> list[Pulled]:
        """No transfer ends."""
        return []

    def start(self) -> None:
        """There is nothing to serve."""

    def reset(self) -> None:
        """There is nothing to forget."""

    def close(self) -> None:
        """There is nothing to close."""
