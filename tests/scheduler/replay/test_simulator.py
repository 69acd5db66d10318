"""The recorded load under another order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import load
from baton_scheduler.replay.script import build_script
from baton_scheduler.replay.simulator import Simulation, compare
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.recordings import flood
from tests.support.scheduler_world import Recorded


@pytest.mark.row("F13.03")
@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
def test_the_simulation_answers_everything_under_every_order(tmp_path: Path, order: str) -> None:
    world = flood(tmp_path / "run", scheduling_policy=order)
    limits, events = load(tmp_path / "run")
    simulation = Simulation(limits, build_script(limits, events))
    waits = simulation.run()
    assert len(waits) == len(world.requests) == 34
    assert simulation._state.idle
    tokens = sum(len(expected_tokens(r.prompt, r.sampling)[0]) for r in world.requests.values())
    assert simulation._state.counters.tokens == tokens


def test_fair_shares_help_whom_a_flood_holds_up(tmp_path: Path) -> None:
    flood(tmp_path / "run")
    found = compare(tmp_path / "run", scheduling_policy="fair")
    calm, flooding = found.changes
    assert found.names == ("fcfs, cost", "fair, cost")
    assert (calm.tenant, calm.requests) == ("calm", 4)
    assert (flooding.tenant, flooding.requests) == ("flood", 30)
    assert calm.after < calm.before / 2 and flooding.after > flooding.before


def test_the_same_order_changes_nothing(tmp_path: Path) -> None:
    flood(tmp_path / "run")
    found = compare(tmp_path / "run")
    assert all(change.before == change.after > 0 for change in found.changes)
    assert found.figures[0] == found.figures[1]


def turns(path: Path, *workers: tuple[str, str]) -> Recorded:
    """Six conversations of three turns, of which only the first tokens differ."""
    limits = {"max_num_batched_tokens": 64, "local_prefill_max_tokens": 0}
    world = Recorded(path, SchedulerOptions(scheduling_policy="fcfs", **limits))  # type: ignore[arg-type]
    for name, role in workers:
        info = worker_info(page_size=4, role=role, pages_address=name)
        world.join(name, info).engine.duration_us = 10_000
    prompts = [[number, *range(40)] for number in range(6)]
    for _ in range(3):
        requests = [world.submit(prompt, Sampling(6)) for prompt in prompts]
        world.finish()
        prompts = [r.prompt + r.tokens + [7, 8, 9] for r in requests]
    world.recorder.close()
    return world


def test_in_turn_finds_less_than_where_the_prefix_is(tmp_path: Path) -> None:
    turns(tmp_path / "run", ("a", "both"), ("b", "both"), ("c", "both"), ("d", "both"))
    found = compare(tmp_path / "run", placement_policy="round-robin")
    assert found.names == ("fcfs, cost", "fcfs, round-robin")
    by_cost, in_turn = found.figures
    assert by_cost.hits > in_turn.hits and by_cost.moved == in_turn.moved == 0
    assert by_cost.mean <= in_turn.mean and by_cost.p95 >= by_cost.mean


def test_keys_take_the_time_that_they_took(tmp_path: Path) -> None:
    world = turns(tmp_path / "run", ("p", "prefill"), ("d", "decode"))
    assert world.state.handoffs.moved_tokens > 6 * 40
    limits, events = load(tmp_path / "run")
    script = build_script(limits, events)
    assert script.pull == pytest.approx((1e-6, 0.0))  # Nobody has measured here.
    slow, quick = replace(script, pull=(5.0, 0.0)), Simulation(limits, script)
    late = Simulation(limits, slow)
    quick.run()
    late.run()
    assert quick.figures().moved > late.figures().moved > 0
    assert late._state.now > quick._state.now
    assert late._state.placement.links.seconds("p", "d", 1) > 0


def test_one_that_was_aborted_in_mid_answer_ends_there(tmp_path: Path) -> None:
    world = Recorded(tmp_path / "run", SchedulerOptions())
    world.join("w", worker_info(max_num_seqs=1)).engine.duration_us = 10_000
    world.submit([1], Sampling(100))
    world.submit([2], Sampling(100))
    for _ in range(5):
        world.round()
    world.abort("g", 1)
    world.abort("g", 2)
    world.recorder.close()
    limits, events = load(tmp_path / "run")
    script = build_script(limits, events)
    assert script.ended == {0} and len(script.logs[0]) == 5 and script.logs[1] == []
    assert set(Simulation(limits, script).run()) == {0}
