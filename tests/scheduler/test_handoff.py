"""Sequences change workers: no token is lost, doubled or wrong, and no page is left behind."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import Pulled, Sampling
from baton_scheduler.events import Transferred, WorkerDraining
from baton_scheduler.limits import Limits
from tests.fakes.worker import expected_tokens, worker_info
from tests.scheduler.world import Request, World

LONG = list(range(100, 190))


def split(decode: int = 1, *, decode_page_size: int = 8, **limits: object) -> World:
    """One prefill worker and some decode workers; nothing but transfers crosses between them."""
    world = World(Limits(local_prefill=0, **limits))  # type: ignore[arg-type]
    world.join("p", worker_info(page_size=8, role="prefill", pages_address="p"))
    for number in range(decode):
        name = f"d{number}"
        info = worker_info(page_size=decode_page_size, role="decode", pages_address=name)
        world.join(name, info)
    return world


def assert_whole(requests: list[Request]) -> None:
    for request in requests:
        expected, reason = expected_tokens(request.prompt, request.sampling)
        assert request.tokens == expected
        assert request.end == reason


def assert_empty(world: World) -> None:
    """Every page is free again, and no grant is left."""
    assert not len(world.state.moves)
    for worker in world.state.fleet:
        assert worker.pool.num_held == 0
        assert not world.peers[worker.name].grants


@pytest.mark.parametrize("decode_page_size", [4, 8, 16])
def test_decode_goes_on_elsewhere(decode_page_size: int) -> None:
    world = split(2, decode_page_size=decode_page_size)
    requests = [world.submit([n, *LONG], Sampling(40, seed=n)) for n in range(12)]
    world.finish()
    assert_whole(requests)
    assert world.state.counters.handoffs == 12
    assert world.state.counters.failed_transfers == 0
    assert_empty(world)


def test_the_target_computes_no_more_than_what_is_newer() -> None:
    world = split()
    world.submit(LONG, Sampling(60))
    world.finish()
    entries = [new for plan in world.plans for new in plan.enter]
    assert len(entries[0].tokens) // 4 == len(LONG)
    assert entries[1].computed >= len(LONG)
    assert len(entries[1].tokens) // 4 - entries[1].computed <= 4


def test_the_source_goes_on_while_keys_travel() -> None:
    world = split()
    request = world.submit(LONG, Sampling(60))
    for _ in range(20):
        world.tick()
        world.run("p")
        world.deliver("p")
    assert len(request.tokens) > 10
    world.finish()
    assert_whole([request])
    assert world.state.counters.handoffs == 1


def test_a_failed_transfer_loses_nothing_and_is_not_tried_for_ever() -> None:
    world = split()
    request = world.submit(LONG, Sampling(60))
    for _ in range(200):
        world.tick()
        for name in ("p", "d0"):
            world.run(name)
            world.pull(name, "the network is gone")
            world.deliver(name)
    assert_whole([request])
    assert world.state.counters.failed_transfers == 2
    assert world.state.counters.handoffs == 0
    assert_empty(world)


@pytest.mark.parametrize("lost", ["p", "d0"])
def test_a_worker_is_lost_in_the_middle_of_a_transfer(lost: str) -> None:
    world = split(2)
    request = world.submit(LONG, Sampling(30))
    while not world.peers["d0"].pulls and not world.peers["d1"].pulls:
        world.tick()
        world.run("p")
        world.deliver("p")
    world.lose_worker(lost)
    world.finish()
    assert_whole([request])
    assert_empty(world)


def test_an_abort_in_the_middle_frees_the_pages_once_the_pull_has_ended() -> None:
    world = split()
    world.submit(LONG, Sampling(30))
    while not world.peers["d0"].pulls:
        world.tick()
        world.run("p")
        world.deliver("p")
    world.abort("g", 1)
    target = world.state.fleet.get("d0")
    assert target is not None
    assert target.pool.num_held > 0, "somebody may still write to them"
    world.pull("d0")
    assert_empty(world)
    again = world.submit(LONG, Sampling(3))
    world.finish()
    assert_whole([again])


def test_without_decode_workers_prefill_workers_do_everything() -> None:
    world = split(0)
    requests = [world.submit([n, *LONG], Sampling(20)) for n in range(3)]
    world.finish()
    assert_whole(requests)


def test_without_prefill_workers_decode_workers_do_everything() -> None:
    world = split(2)
    world.lose_worker("p")
    requests = [world.submit([n, *LONG], Sampling(20)) for n in range(3)]
    world.finish()
    assert_whole(requests)


def test_a_short_prompt_is_computed_where_it_decodes() -> None:
    world = World(Limits(local_prefill=16))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    world.join("d", worker_info(role="decode", pages_address="d"))
    short, long = world.submit(LONG[:16], Sampling(9)), world.submit(LONG, Sampling(9))
    world.tick()
    [entry] = world.peers["d"].sent[0].enter
    assert len(entry.tokens) // 4 == 16
    world.finish()
    assert_whole([short, long])


def test_a_second_turn_prefills_where_its_first_one_decoded() -> None:
    world = World(Limits(local_prefill=32))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    world.join("d", worker_info(role="decode", pages_address="d"))
    first = world.submit(LONG, Sampling(30))
    world.finish()
    second = world.submit(LONG + first.tokens + [7, 8, 9], Sampling(5))
    world.tick()
    assert not world.peers["p"].plans
    world.finish()
    assert_whole([first, second])


def test_a_draining_worker_passes_on_what_it_runs() -> None:
    world = World()
    for name in ("a", "b"):
        world.join(name, worker_info(pages_address=name))
    requests = [world.submit([n, *LONG], Sampling(60)) for n in range(6)]
    for _ in range(5):
        world.round()
    world.apply(WorkerDraining("a"))
    for _ in range(12):
        world.round()
    draining = world.state.fleet.get("a")
    assert draining is not None
    assert len(draining.batch) == 0
    assert world.state.counters.handoffs == 3
    world.finish()
    assert_whole(requests)


def test_a_full_target_leaves_the_sequence_where_it_is() -> None:
    world = World(Limits(local_prefill=0))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    world.join("d", worker_info(role="decode", pages_address="d", max_rows=1))
    requests = [world.submit([n, *LONG], Sampling(50)) for n in range(4)]
    world.finish()
    assert_whole(requests)
    assert_empty(world)


def test_keys_of_another_layout_are_not_pulled() -> None:
    world = World(Limits(local_prefill=0))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    other = worker_info(role="decode", pages_address="d")
    world.join(
        "d",
        type(other)(**{f: getattr(other, f) for f in other.__struct_fields__} | {"kv_layout": "x"}),
    )
    request = world.submit(LONG, Sampling(20))
    world.finish()
    assert_whole([request])
    assert world.state.counters.handoffs == 0


def test_a_pull_that_nobody_asked_for_changes_nothing() -> None:
    world = split()
    world.submit(LONG, Sampling(30))
    while not world.peers["d0"].pulls:
        world.tick()
        world.run("p")
        world.deliver("p")
    before = world.state.digest()
    for name, pulled in (
        ("d0", Pulled(99, 1)),
        ("p", Pulled(1, 1)),
        ("x", Pulled(2, 1)),
        ("d0", Pulled(2, 7)),
    ):
        world.apply(Transferred(name, pulled))
        assert world.state.digest() == before


def test_what_has_given_pages_back_is_computed_again_elsewhere() -> None:
    world = World()
    for name in ("old", "new"):
        world.join(name, worker_info(page_size=8, pages_address=name, window=20))
    world.apply(WorkerDraining("new"))
    request = world.submit(LONG, Sampling(60))
    while len(request.tokens) < 10:
        world.round()
    world.join("new", worker_info(page_size=8, pages_address="new", window=20))
    world.apply(WorkerDraining("old"))
    world.tick()
    assert world.state.counters.handoffs == 1 and not world.peers["new"].pulls
    world.finish()
    world.round()
    assert_whole([request])
    assert_empty(world)


def test_a_prefill_worker_passes_on_what_no_token_sees_any_more() -> None:
    world = World(Limits(local_prefill=0))
    for name, role in (("p", "prefill"), ("d", "decode")):
        info = worker_info(page_size=8, role=role, pages_address=name, window=20)
        world.join(name, structs.replace(info, max_batch_tokens=16))
    request = world.submit(LONG, Sampling(60))
    world.finish()
    assert_whole([request])
    entries = [new for plan in world.plans for new in plan.enter]
    assert entries[1].computed >= len(LONG)
    drops = {name: [p for p in peer.sent if p.drop_rows] for name, peer in world.peers.items()}
    assert not drops["p"] and drops["d"]
    assert_empty(world)
