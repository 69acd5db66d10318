"""Steps in order: where it can, the next one is launched before the last one is read.

    host      plan 7 . launch 7 | launch 8 . read 7 | launch 9 . read 8 | ...
    device    ......... step 7 ......... | step 8 ......... | step 9 ...

A sequence that ends in step 7 has a row in step 8 already, which gives nothing. A step whose rows
need the host (`HostRows`) runs alone: the last one is read first, and then itself.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from baton.protocol import Plan, Result
from baton_worker.engine.async_scheduling.launched_step import LaunchedStep
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.platform.device_link import Download


class StepPipeline:
    """Runs steps on one runner; at most one is unread when `submit` returns."""

    def __init__(self, runner: ModelRunner, *, speculates: bool = False) -> None:
        self._runner, self._speculates = runner, speculates
        self._unread: LaunchedStep | None = None
        self.waits = Counter[str]()
        """Number of steps that were not launched ahead, by reason."""

    @property
    def in_flight(self) -> bool:
        """True if a step has been launched whose result is not known."""
        return self._unread is not None

    @property
    def ready(self) -> bool:
        """True if `finish` takes no time."""
        return self._unread is None or self._unread.ready

    @property
    def unread(self) -> Download | None:
        """The copy to the host that `finish` waits for, if any."""
        return None if self._unread is None else self._unread.read

    def submit(self, plan: Plan, turn: int = 0) -> list[Result]:
        """Launch or run a step; returns the results that are known now, in order.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        if reason := self._reason(plan, turn):
            self.waits[reason] += 1
            return [*self.finish(), self._runner.step(plan, turn)]
        last = self._unread
        self._unread = self._runner.launch(plan, turn, ahead=last is not None)
        return [] if last is None else [self._runner.read(last, self._unread)]

    def finish(self) -> list[Result]:
        """Wait for the step in flight, if there is one; returns its result."""
        last, self._unread = self._unread, None
        return [] if last is None else [self._runner.read(last)]

    def _reason(self, plan: Plan, turn: int) -> str:
        unread = self._unread
        launched = np.zeros(0, np.int64)
        if unread is not None:
            slots = unread.prepared.inputs.rows.slots
            launched = slots[unread.live(slots)]
        rows = self._runner.batch.host_rows
        return rows.reason(plan, turn, launched, self._speculates)
