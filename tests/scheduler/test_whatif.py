"""The recorded load under another order."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.protocol import Sampling
from baton.tokens import pack
from baton_scheduler import whatif
from baton_scheduler.limits import Limits
from baton_scheduler.recorder import load
from baton_scheduler.whatif import Simulation, compare, learn
from tests.fakes.worker import expected_tokens, token, worker_info
from tests.scheduler.world import Recorded


def flood(path: Path, **limits: object) -> Recorded:
    """30 requests of one tenant, then 4 of another, and a loss of the worker in between."""
    world = Recorded(path, Limits(max_batch_tokens=32, **limits))  # type: ignore[arg-type]
    world.join("w", worker_info(num_pages=30, page_size=4, max_rows=4)).engine.duration_us = 10_000
    for number in range(30):
        stop = token(pack([number] * 8), number, 6)
        sampling = Sampling(12, seed=number, stop_ids=(stop,) if number % 2 else ())
        world.submit([number] * 8, sampling, tenant="flood")
    for number in range(4):
        world.round()
        world.submit([number] * 8, Sampling(4, seed=number), tenant="calm")
    world.lose_worker()
    world.join("w", worker_info(num_pages=30, page_size=4, max_rows=4)).engine.duration_us = 10_000
    world.finish()
    world.recorder.close()
    return world


def test_the_script_is_what_was_answered(tmp_path: Path) -> None:
    world = flood(tmp_path / "run")
    script = learn(*load(tmp_path / "run"))
    requests = list(world.requests.values())
    assert script.logs == [request.tokens for request in requests]
    assert script.ended == {n for n, request in enumerate(requests) if request.end == "stop"}
    assert len(script.ended) == 15


@pytest.mark.row("F13.03")
@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
def test_the_simulation_answers_everything_under_every_order(tmp_path: Path, order: str) -> None:
    world = flood(tmp_path / "run", order=order)
    limits, events = load(tmp_path / "run")
    simulation = Simulation(limits, learn(limits, events))
    waits = simulation.run()
    assert len(waits) == len(world.requests) == 34
    assert simulation._state.idle
    tokens = sum(len(expected_tokens(r.prompt, r.sampling)[0]) for r in world.requests.values())
    assert simulation._state.counters.tokens == tokens


def test_fair_shares_help_whom_a_flood_holds_up(tmp_path: Path) -> None:
    flood(tmp_path / "run")
    recorded, (calm, flooding) = compare(tmp_path / "run", "fair")
    assert (recorded, calm.tenant, calm.requests) == ("fcfs", "calm", 4)
    assert (flooding.tenant, flooding.requests) == ("flood", 30)
    assert calm.after < calm.before / 2 and flooding.after > flooding.before


def test_the_same_order_changes_nothing(tmp_path: Path) -> None:
    flood(tmp_path / "run")
    _, changes = compare(tmp_path / "run", "fcfs")
    assert all(change.before == change.after > 0 for change in changes)


def test_one_that_was_aborted_in_mid_answer_ends_there(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", Limits())
    world.join("w", worker_info(max_rows=1)).engine.duration_us = 10_000
    world.submit([1], Sampling(100))
    world.submit([2], Sampling(100))
    for _ in range(5):
        world.round()
    world.abort("g", 1)
    world.abort("g", 2)
    world.recorder.close()
    limits, events = load(tmp_path / "run")
    script = learn(limits, events)
    assert script.ended == {0} and len(script.logs[0]) == 5 and script.logs[1] == []
    assert set(Simulation(limits, script).run()) == {0}


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
    assert whatif._fit(steps) == pytest.approx(model)


def test_without_a_step_there_is_nothing_to_learn_from(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", Limits())
    world.tick()
    world.recorder.close()
    with pytest.raises(SettingsError, match="No step"):
        compare(tmp_path / "run", "fair")
