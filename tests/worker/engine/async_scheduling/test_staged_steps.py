"""Steps of a pipeline: several begin before the first is complete, in order, or one runs alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.engine.async_scheduling.staged_step import StagedStep
from baton_worker.engine.async_scheduling.staged_steps import StagedSteps


class Runner:
    """Notes what it is asked for; results are the numbers of steps."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.reason = ""
        self.seen: list[int] = []
        self.batch = SimpleNamespace(host_rows=SimpleNamespace(waits=self._waits))

    def _waits(self, plan: int, turn: int, unread: list[int], speculates: bool) -> str:
        self.seen = list(unread)
        return self.reason

    def begin(self, plan: int, turn: int, *, ahead: bool) -> Any:
        self.calls.append(f"begin {plan}{' ahead' * ahead}")
        run = None if plan == 9 else lambda: self.calls.append(f"run {plan}")
        prepared: Any = SimpleNamespace(inputs=SimpleNamespace(rows=plan))
        return StagedStep(prepared, run)  # type: ignore[arg-type]

    def complete(self, step: Any) -> int:
        number: int = step.prepared.inputs.rows
        self.calls.append(f"complete {number}")
        return number

    def step(self, plan: int, turn: int) -> int:
        self.calls.append(f"step {plan}")
        return plan


def made(arrived: bool = True) -> tuple[Any, Any, Any]:
    runner, forward = Runner(), SimpleNamespace(arrived=arrived)
    return runner, forward, StagedSteps(runner, forward, 2)  # type: ignore[arg-type]


def test_as_many_steps_as_stages_are_in_flight() -> None:
    runner, _, steps = made()
    assert not steps.in_flight and steps.ready and steps.finish() == []
    assert [steps.submit(number) for number in (1, 2, 3, 4)] == [[], [], [1], [2]]
    assert runner.calls[:4] == ["begin 1", "begin 2 ahead", "begin 3 ahead", "complete 1"]
    assert runner.seen == [2, 3] and steps.in_flight
    assert steps.finish() == [3] and steps.finish() == [4] and not steps.in_flight


def test_a_step_that_reads_what_another_changes_runs_alone() -> None:
    runner, _, steps = made()
    steps.submit(1)
    steps.submit(2)
    runner.reason = "a token of it is not sampled yet"
    assert steps.submit(3) == [1, 2, 3]
    assert runner.calls[-3:] == ["complete 1", "complete 2", "step 3"]
    assert steps.waits == {"a token of it is not sampled yet": 1} and not steps.in_flight


def test_a_step_is_ready_once_its_states_are_here() -> None:
    _, forward, steps = made(arrived=False)
    steps.submit(9)
    assert steps.ready, "a step without rows has no states"
    steps.finish()
    steps.submit(1)
    assert not steps.ready
    forward.arrived = True
    assert steps.ready


def test_what_is_forgotten_runs_to_its_end_in_every_stage() -> None:
    """Its states are on their way, and would be taken for those of the next step."""
    runner, _, steps = made()
    for number in (1, 9):
        steps.submit(number)
    steps.abandon()
    assert runner.calls[-1] == "run 1" and not steps.in_flight
