"""Sequences change workers: no token is lost, doubled or wrong, and no page is left behind."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import AdapterInfo, Pull, Pulled, Sampling, TransferStats
from baton_scheduler.disaggregation.handoff import Handoff
from baton_scheduler.events import Transferred, WorkerAssigned, WorkerDraining
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state.dispatch import place
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.disaggregated_world import (
    split,
)
from tests.support.scheduler_world import Request, World

LONG = list(range(100, 190))


def assert_whole(requests: list[Request]) -> None:
    for request in requests:
        expected, reason = expected_tokens(request.prompt, request.sampling)
        assert request.tokens == expected
        assert request.end == reason


def assert_empty(world: World) -> None:
    """Every page is free again, and no grant is left."""
    assert not len(world.state.handoffs)
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


@pytest.mark.row("F11.01")
def test_a_sequence_moves_to_a_worker_that_has_its_adapter() -> None:
    world, sql = split(3), AdapterInfo("sql", b"1")
    for name in ("p", "d2"):
        info = world.peers[name].engine.info
        world.join(name, structs.replace(info, adapters=(sql,), max_loras=1))
    adapted = [world.submit([n, *LONG], Sampling(40, seed=n), adapter=b"1") for n in range(3)]
    plain = [world.submit([n, *LONG], Sampling(40, seed=n)) for n in range(3)]
    world.finish()
    assert_whole(adapted + plain)
    assert world.state.counters.handoffs == 6
    went = {
        name: [n.adapter for plan in peer.sent for n in plan.new_sequences if n.adapter]
        for name, peer in world.peers.items()
    }
    assert went == {"d0": [], "d1": [], "p": [b"1"] * 3, "d2": [b"1"] * 3}
    assert all(request.cached is None for request in (*adapted, *plain)), "nothing is shared"
    assert_empty(world)


def test_the_target_computes_no_more_than_what_is_newer() -> None:
    world = split()
    world.submit(LONG, Sampling(60))
    world.finish()
    entries = [new for plan in world.plans for new in plan.new_sequences]
    assert len(entries[0].tokens) // 4 == len(LONG)
    assert entries[1].num_computed >= len(LONG)
    assert len(entries[1].tokens) // 4 - entries[1].num_computed <= 4


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


def test_a_pull_that_fails_after_its_sequence_has_ended_is_no_failed_transfer() -> None:
    """The source may have exited by the time that the target gives up."""
    world = split()
    request = world.submit(LONG, Sampling(60))
    for _ in range(200):
        world.tick()
        world.run("p")
        world.deliver("p")
    assert_whole([request])
    assert len(world.state.handoffs) == 1
    assert world.pull("d0", "the source sends nothing")
    assert world.state.counters.failed_transfers == 0
    world.tick()
    assert_empty(world)


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
    world = World(SchedulerOptions(local_prefill_max_tokens=16))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    world.join("d", worker_info(role="decode", pages_address="d"))
    short, long = world.submit(LONG[:16], Sampling(9)), world.submit(LONG, Sampling(9))
    world.tick()
    [entry] = world.peers["d"].sent[0].new_sequences
    assert len(entry.tokens) // 4 == 16
    world.finish()
    assert_whole([short, long])


def test_a_second_turn_prefills_where_its_first_one_decoded() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=32))
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


def test_a_worker_that_becomes_a_prefill_worker_passes_on_what_it_runs() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    for name in ("a", "b"):
        world.join(name, worker_info(pages_address=name))
    requests = [world.submit([n, *LONG], Sampling(60)) for n in range(6)]
    for _ in range(5):
        world.round()
    world.apply(WorkerAssigned("a", "prefill"))
    for _ in range(12):
        world.round()
    assigned = world.state.fleet.get("a")
    assert assigned is not None and len(assigned.batch) == 0
    assert world.state.counters.handoffs == 3
    later = [world.submit([100 + n, *LONG], Sampling(30)) for n in range(3)]
    world.finish()
    assert_whole(requests + later)
    assert_empty(world)


def test_a_worker_that_becomes_a_decode_worker_begins_nothing_more() -> None:
    world = split(1)
    first = world.submit(LONG, Sampling(60))
    for _ in range(3):
        world.round()
    world.apply(WorkerAssigned("p", "decode"))
    world.apply(WorkerAssigned("d0", "prefill"))
    planned = len(world.peers["p"].sent)
    second = world.submit([7, *LONG], Sampling(40))
    world.finish()
    assert_whole([first, second])
    started = [new for plan in world.peers["p"].sent[planned:] for new in plan.new_sequences]
    assert all(new.num_computed for new in started), "a prompt was begun on a decode worker"
    assert_empty(world)


def test_to_be_assigned_what_one_is_changes_nothing() -> None:
    world = split(1)
    world.submit(LONG, Sampling(20))
    world.round()
    before = world.state.digest()
    world.apply(WorkerAssigned("p", "prefill"))
    world.apply(WorkerAssigned("nobody", "prefill"))
    assert world.state.digest() == before
    world.apply(WorkerAssigned("p", "both"))
    assert world.state.digest() != before


def test_host_memory_ends_with_the_role_that_may_have_it() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    small = worker_info(page_size=8, num_pages=24, host_pages=64, pages_address="a")
    world.join("a", small)
    for first in range(4):  # Three of these fit: the first is swapped out.
        request = world.submit([1000 + first, *range(50)], Sampling(2))
        world.finish()
        assert_whole([request])
    worker = world.state.fleet.get("a")
    assert worker is not None and worker.pool.host is not None and len(worker.pool.host)
    again = world.submit([1000, *range(50)], Sampling(30))
    place(world.state)  # Its pages are to be brought back, and no plan says so yet.
    assert worker.batch.pending_swap_in
    world.apply(WorkerAssigned("a", "decode"))
    assert worker.pool.host is None and not worker.batch.pending_swap_in
    world.finish()
    assert_whole([again])
    assert_empty(world)


def test_keys_are_not_pulled_into_pages_that_may_go_to_the_host() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    for name in ("a", "b"):
        world.join(name, worker_info(pages_address=name, host_pages=64))
    world.apply(WorkerDraining("b"))
    request = world.submit(LONG, Sampling(40))
    for _ in range(5):
        world.round()
    world.join("b", worker_info(pages_address="b", host_pages=64))
    world.apply(WorkerDraining("a"))
    world.finish()
    assert_whole([request])
    assert world.state.counters.handoffs == 1 and world.state.handoffs.moved_tokens == 0


def test_a_full_target_leaves_the_sequence_where_it_is() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    world.join("d", worker_info(role="decode", pages_address="d", max_num_seqs=1))
    requests = [world.submit([n, *LONG], Sampling(50)) for n in range(4)]
    world.finish()
    assert_whole(requests)
    assert_empty(world)


def test_keys_of_another_layout_are_not_pulled() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
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


WINDOWS = [(20,), (0, 20), (20, 0, 33)]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("page_size", [4, 8, 16])
def test_of_what_has_given_pages_back_what_is_seen_is_pulled(
    windows: tuple[int, ...], page_size: int
) -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    for name, role in (("p", "prefill"), ("d", "decode")):
        size = page_size if role == "decode" else 8
        info = worker_info(page_size=size, role=role, num_pages=1024, windows=windows)
        world.join(name, structs.replace(info, kv_address=name, max_num_batched_tokens=16))
    requests = [world.submit([n, *LONG * 5], Sampling(60, seed=n)) for n in range(3)]
    world.finish()
    assert_whole(requests)
    entries = [new for plan in world.peers["d"].sent for new in plan.new_sequences]
    assert len(entries) == 3 and all(new.num_computed >= 5 * len(LONG) for new in entries)
    assert all(any(p.drop_rows for p in peer.sent) for peer in world.peers.values())
    assert_empty(world)


@pytest.mark.parametrize("windows", WINDOWS)
def test_what_lacks_something_that_is_seen_is_computed_again_elsewhere(
    windows: tuple[int, ...],
) -> None:
    """The window of the token behind 103 tokens begins with token 84, in page 10, and the one
    behind the 12 pages of 8 that the target could go on from with 77, in page 9."""
    world = World()
    old = worker_info(page_size=8, pages_address="old", windows=windows)
    world.join("old", old)
    request = world.submit(LONG, Sampling(60))
    worker = world.state.fleet.get("old")
    assert worker is not None
    while worker.batch.num_confirmed[0] != 103:
        world.round()
    world.apply(WorkerDraining("old"))
    world.join("new", structs.replace(old, kv_address="new"))
    world.tick()
    assert world.state.counters.handoffs == 1 and not world.peers["new"].pulls
    world.finish()
    world.round()
    assert_whole([request])
    assert_empty(world)


def test_layers_that_are_grouped_otherwise_pass_nothing_on() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    world.join("p", worker_info(role="prefill", pages_address="p", windows=(0, 20)))
    world.join("d", worker_info(role="decode", pages_address="d"))
    request = world.submit(LONG, Sampling(20))
    world.finish()
    assert_whole([request])
    assert world.state.counters.handoffs == 0


PROMPT = list(range(900))


def chunked(decode: int = 1, page_size: int = 8, **limits: object) -> World:
    """A prompt of 900 tokens takes eight steps."""
    world = World(SchedulerOptions(local_prefill_max_tokens=0, **limits))  # type: ignore[arg-type]
    for name, role in (("p", "prefill"), *((f"d{n}", "decode") for n in range(decode))):
        size = 8 if role == "prefill" else page_size
        info = worker_info(num_pages=512, page_size=size, role=role, pages_address=name)
        world.join(name, structs.replace(info, max_num_batched_tokens=128))
    return world


def moves(world: World, request: Request) -> list[Handoff]:
    """Every transfer until the request has ended."""
    seen: dict[int, Handoff] = {}
    while not request.end:
        world.tick()
        seen |= {move.id: move for move in world.state.handoffs}
        for name in world.peers:
            world.run(name)
            world.pull(name)
            world.deliver(name)
    return list(seen.values())


def until_pulled(world: World) -> Pull:
    """The next pull that any worker is told of."""
    for _ in range(100):
        world.tick()
        for peer in world.peers.values():
            if peer.pulls:
                return peer.pulls[0]
        world.run("p")
        world.deliver("p")
    raise AssertionError("nobody is told to pull")


@pytest.mark.parametrize("page_size", [4, 8, 16, 48])
def test_a_long_prompt_is_pulled_while_it_is_computed(page_size: int) -> None:
    world = chunked(page_size=page_size)
    request = world.submit(PROMPT, Sampling(20))
    until_pulled(world)
    assert not request.tokens
    parts = moves(world, request)
    assert len(parts) > 3
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert all(part.end % page_size == 0 for part in parts if not part.last)
    assert_whole([request])
    last = world.peers["d0"].sent[0].new_sequences[0]
    assert last.num_computed >= len(PROMPT) // page_size * page_size
    assert_empty(world)


def test_what_is_left_when_the_prompt_is_whole_is_small() -> None:
    """The pause before the change is that of the last part, not of the whole prompt."""
    world = chunked()
    request = world.submit(PROMPT, Sampling(20))
    parts = moves(world, request)
    early = [part for part in parts if not part.last]
    assert sum(part.end - part.start for part in early) >= len(PROMPT) - 2 * 128
    assert [part.last for part in parts] == sorted(part.last for part in parts)
    assert_whole([request])


@pytest.mark.parametrize("placement", ["cost", "round-robin", "least-loaded"])
def test_all_parts_go_to_one_worker(placement: str) -> None:
    world = chunked(3, placement_policy=placement)
    request = world.submit(PROMPT, Sampling(20))
    parts = moves(world, request)
    assert len(parts) > 3 and len({move.target for move in parts}) == 1
    assert world.peers[parts[0].target].sent, "and it goes on there"
    assert_whole([request])
    assert_empty(world)


@pytest.mark.parametrize("lost", ["p", "d0", "failed"])
def test_a_part_that_does_not_arrive_loses_nothing(lost: str) -> None:
    world = chunked(2)
    request = world.submit(PROMPT, Sampling(20))
    until_pulled(world)
    busy = next(name for name, peer in world.peers.items() if peer.pulls)
    if lost == "failed":
        world.pull(busy, "a block is corrupt")
    else:
        world.lose_worker("p" if lost == "p" else busy)
    world.finish()
    assert_whole([request])
    assert_empty(world)


def test_an_abort_while_a_part_is_pulled_frees_everything() -> None:
    world = chunked()
    world.submit(PROMPT, Sampling(20))
    until_pulled(world)
    world.abort("g", 1)
    world.pull("d0")
    assert_empty(world)


def test_a_grant_is_of_the_epoch_that_its_pull_names() -> None:
    world = chunked()
    world.submit(PROMPT, Sampling(20))
    pull = until_pulled(world)
    source = world.state.fleet.get("p")
    assert source is not None
    assert pull.source_epoch == source.epoch == world.peers["p"].grants[pull.id].epoch


def test_what_each_transport_carried_is_counted() -> None:
    world = chunked()
    world.submit(PROMPT, Sampling(20))
    for reason, transport in (("", "shm"), ("a block is corrupt", "shm"), ("", "")):
        number = until_pulled(world).id
        epoch = world.peers["d0"].epoch
        world.peers["d0"].pulls.popleft()
        world.apply(Transferred("d0", Pulled(epoch, number, reason, 8, 500_000, transport)))
    none, shm = world.state.handoffs.transfer_totals.stats()
    assert none == TransferStats("none", 1, 0, 8, 0.5)
    assert shm == TransferStats("shm", 1, 1, 8, 0.5)
