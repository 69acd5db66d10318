"""Steps in order through the stages of a pipeline: the first stage runs one while the last one runs
another.

    stage 0   step 7 | step 8 | step 9 | ...
    stage 1          | step 7 | step 8 | step 9 ...

The scheduler plans steps of different sequences in turn. A step that needs the tokens of one in
flight, or whose rows change what others read (`HostRows.waits`), runs alone.
"""

from __future__ import annotations

from collections import Counter, deque

from baton.protocol import Plan, Result
from baton_worker.engine.async_scheduling.staged_forward import StagedForward
from baton_worker.engine.async_scheduling.staged_step import StagedStep
from baton_worker.engine.model_runner import ModelRunner


class StagedSteps:
    """Runs steps on one runner; at most `num_stages` are unread when `submit` returns."""

    def __init__(
        self,
        runner: ModelRunner,
        forward: StagedForward,
        num_stages: int,
        *,
        speculates: bool = False,
    ) -> None:
        self._runner, self._forward, self._most = runner, forward, num_stages
        self._speculates = speculates
        self._unread = deque[StagedStep]()
        self.waits = Counter[str]()
        """Number of steps that ran alone, by reason."""

    @property
    def in_flight(self) -> bool:
        """True if a step has begun whose result is not known."""
        return bool(self._unread)

    @property
    def ready(self) -> bool:
        """True if the oldest of them is in this stage."""
        return not self._unread or not self._unread[0].has_rows or self._forward.arrived

    @property
    def unread(self) -> None:
        """Nothing is copied to the host: the previous stage sends its states."""

    def submit(self, plan: Plan, turn: int = 0) -> list[Result]:
        """Begin or run a step; returns the results that are known now, in order.

        Raises:
            PlanError: the plan does not fit what this worker holds.
        """
        unread = [step.prepared.inputs.rows for step in self._unread]
        if reason := self._runner.batch.host_rows.waits(plan, turn, unread, self._speculates):
            self.waits[reason] += 1
            before = [self._completed() for _ in unread]
            return [*before, self._runner.step(plan, turn)]
        ahead = bool(self._unread)
        self._unread.append(self._runner.begin(plan, turn, ahead=ahead))
        return [self._completed()] if len(self._unread) > self._most else []

    def finish(self) -> list[Result]:
        """Wait for the oldest step in flight, if there is one; returns its result."""
        return [self._completed()] if self._unread else []

    def abandon(self) -> None:
        """Forget the steps in flight: other stages run them to their end."""
        while self._unread:
            self._unread.popleft().discard()

    def _completed(self) -> Result:
        return self._runner.complete(self._unread.popleft())
