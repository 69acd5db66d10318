"""What is learnt from a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import load
from baton_scheduler.replay.script import build_script, fit
from baton_scheduler.replay.simulator import compare
from tests.support.scheduler.recordings import flood
from tests.support.scheduler_world import Recorded


def test_the_script_is_what_was_answered(tmp_path: Path) -> None:
    world = flood(tmp_path / "run")
    script = build_script(*load(tmp_path / "run"))
    requests = list(world.requests.values())
    assert script.logs == [request.tokens for request in requests]
    assert script.ended == {n for n, request in enumerate(requests) if request.end == "stop"}
    assert len(script.ended) == 15


@pytest.mark.parametrize(
    ("steps", "model"),
    [
        ([(10, 1000), (20, 1500), (40, 2500)], (5e-4, 5e-5)),
        ([(8, 700), (8, 900)], (8e-4, 0.0)),
        ([(1, 900), (2, 800)], (8.5e-4, 0.0)),
    ],
)
def test_a_step_is_a_constant_and_so_much_per_token(
    steps: list[tuple[int, int]], model: tuple[float, float]
) -> None:
    assert fit(steps) == pytest.approx(model)


def test_without_a_step_there_is_nothing_to_learn_from(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", SchedulerOptions())
    world.tick()
    world.recorder.close()
    with pytest.raises(SettingsError, match="No step"):
        compare(tmp_path / "run", scheduling_policy="fair")
