"""Several models in one fleet: each has its own queue, workers and limits."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling
from baton_scheduler.events import WorkerDraining
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World


def two_models(**limits: object) -> World:
    """One worker with one slot per model; nothing but the model's name tells them apart."""
    world = World(SchedulerOptions(**limits))  # type: ignore[arg-type]
    world.join("a", worker_info(model="a", max_num_seqs=1))
    world.join("b", worker_info(model="b", max_num_seqs=1))
    return world


def ran(world: World) -> dict[str, list[str]]:
    """Worker -> requests that it was sent."""
    return {
        name: [new.request for plan in peer.sent for new in plan.new_sequences]
        for name, peer in world.peers.items()
    }


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_head_of_one_model_does_not_block_another(policy: str) -> None:
    world = two_models(scheduling_policy=policy)
    for number in range(3):
        world.submit([number], Sampling(50), model="a", name=f"a{number}")
    quick = world.submit([9], Sampling(2), model="b", name="b0")
    for _ in range(4):
        world.round()
    assert quick.end == "length" and len(world.state.queue) == 2
    assert world.state.queue.num_waiting("a") == 2 and world.state.queue.num_waiting("b") == 0
    world.finish()
    assert ran(world) == {"a": ["a0", "a1", "a2"], "b": ["b0"]}


def test_queues_have_limits_of_their_own() -> None:
    world = two_models(max_num_queued_reqs=1, max_tenant_share=1.0)
    requests = [world.submit([n], Sampling(1), model=m) for n, m in enumerate("aab")]
    assert [r.failed.code if r.failed else "" for r in requests] == ["", "server_is_overloaded", ""]


def test_a_sequence_waits_for_a_worker_of_its_model() -> None:
    world = World(SchedulerOptions(no_worker_seconds=2.0))
    world.join("a", worker_info(model="a"))
    early = world.submit([1], Sampling(1), model="b")
    world.tick(1.5)
    late = world.submit([1], Sampling(1), model="b")
    world.tick(1.0)
    assert early.failed is not None and early.failed.code == "no_worker" and late.end is None
    world.join("b", worker_info(model="b"))
    world.finish()
    assert late.end == "length" and ran(world)["a"] == []


def test_kv_is_not_handed_to_a_worker_of_another_model() -> None:
    world = World()
    for name in "ab":
        world.join(name, worker_info(model=name, pages_address=name))
    request = world.submit([1] * 40, Sampling(30), model="a")
    for _ in range(3):
        world.round()
    world.apply(WorkerDraining("a"))
    world.finish()
    assert request.end == "length" and not any(peer.pulls for peer in world.peers.values())
    assert world.state.handoffs.moved_tokens == 0 and ran(world)["b"] == []


def test_round_robin_takes_turns_within_a_model() -> None:
    world = World(SchedulerOptions(placement_policy="round-robin"))
    for name in ("a1", "a2", "b1"):
        world.join(name, worker_info(model=name[0]))
    for number in range(4):
        world.submit([number], Sampling(1), model="ab"[number % 2])
        world.round()
    assert {name: len(sent) for name, sent in ran(world).items()} == {"a1": 1, "a2": 1, "b1": 2}


def test_tenants_of_two_queues_are_told_apart() -> None:
    world = two_models(scheduling_policy="fair")
    world.submit([1] * 9, Sampling(5), model="a", tenant="x")
    world.submit([1] * 9, Sampling(5), model="b", tenant="y")
    world.finish()
    numbers = [queue.layout() for _, queue in world.state.queue.items()]
    assert b"(1, 19.0)" in numbers[0] and b"(2, 19.0)" in numbers[1]
