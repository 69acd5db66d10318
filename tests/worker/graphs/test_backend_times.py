"""Steps by which attention backends are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.graphs import backend_times
from baton_worker.graphs.backend_times import Case, step_seconds
from tests.fakes.replayed_steps import Counting

CALL = AttentionSpec(4, 2, 8, 1.0, None, torch.float32, torch.device("cpu"))


class Planned:
    """A plan that is made anew before each replay."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.lengths = plan, list[Sequence[int]]()

    def refresh(self, lengths: Sequence[int]) -> None:
        self.lengths.append(lengths)


class Captured(GroupedBackend):
    capture_blocker = None
    launch_blocker = "its plans are in one place"
    plans: list[Planned]

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Any:
        plan = super().plan(batch, call)
        if not batch.captured:
            return plan
        self.plans.append(made := Planned(plan))
        return made

    def forward(self, plan: Any, *args: Any, **kwargs: Any) -> Any:
        return super().forward(getattr(plan, "plan", plan), *args, **kwargs)


class Clock:
    def seconds(self, step: Callable[[], object], times: int) -> float:
        step()
        return 1.0


def test_decode_steps_are_replayed_and_prompts_are_planned_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend_times, "_LAYERS", 2)
    backend, recorder = Captured(), Counting()
    backend.plans = []
    decode = step_seconds(backend, CALL, 4, Case(3, 1, 9), recorder, Clock())
    assert (recorder.captured, recorder.replays) == (1, 1)
    assert [plan.lengths for plan in backend.plans] == [[[9, 9, 9]]]
    prompt = step_seconds(backend, CALL, 4, Case(1, 3, 8), recorder, Clock())
    assert recorder.captured == 1 and prompt == 1.0 < decode < 1.001
    plain = step_seconds(GroupedBackend(), CALL, 4, Case(3, 1, 9), recorder, Clock())
    assert recorder.captured == 1 and plain == 1.0
