"""Placement policies: the chosen worker and its cost."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from msgspec import structs

from baton.protocol import Sampling, Submit, WorkerInfo
from baton.protocol.token_columns import pack
from baton_scheduler.events import Decision, Event, Transferred
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.placement.placement import (
    CostBased,
    LeastLoaded,
    Modulo,
    RoundRobin,
    average,
    beginning,
    decode_candidates,
    decode_target,
    prefill_candidates,
    price,
    with_room,
)
from baton_scheduler.placement.policies import SCORES, parse_scores
from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.replay.recorder import replay
from baton_scheduler.sequence import Sequence, sequence
from baton_scheduler.workers.fleet import Fleet, Worker
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Recorded

SIZE = 4
ROLES = {"p": "prefill", "q": "prefill", "d": "decode", "e": "decode", "b": "both"}


def arrive(length: int = 40, first: int = 0, max_tokens: int = 100) -> Sequence:
    tokens = pack(range(first, first + length))
    submit = Submit(1, "r", tokens, Sampling(max_tokens))
    return sequence("g", submit, "", 1, 0.0, fcfs)


def info(role: str = "both", **fields: int) -> WorkerInfo:
    sizes = {
        "num_pages": 64,
        "page_size": SIZE,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
    } | fields
    made = worker_info(role=role, pages_address="x", **sizes)
    return structs.replace(made, kv_bytes=1000 * SIZE * made.num_pages)


def fleet(*names: str, **fields: int) -> Fleet:
    """Workers by name, which says their role."""
    made = Fleet()
    for name in names:
        made.join(name, 1, info(ROLES[name[0]], **fields), 64)
    return made


def at(fleet: Fleet, name: str) -> Worker:
    worker = fleet.get(name)
    assert worker is not None
    return worker


def know(worker: Worker, known: Sequence) -> None:
    """A sequence has run there and has left: its full pages are cached."""
    worker.place(known, 0)
    slots = np.array([known.slot])
    worker.batch.num_scheduled[slots] = worker.batch.num_known[slots]
    worker.batch.pending_prefill_tokens = 0
    worker.kv.confirm(slots, worker.batch.num_known[slots])
    worker.evict(known.slot)


def busy(worker: Worker, rows: int) -> None:
    """So many sequences decode there."""
    for number in range(rows):
        one = arrive(SIZE, 10_000 + 100 * number)
        worker.place(one, 0)
        worker.batch.num_scheduled[one.slot] = one.num_tokens
    worker.batch.pending_prefill_tokens = 0


def measure(fleet: Fleet, base: float = 0.01, slope: float = 0.001) -> None:
    """Every worker has seen steps of all sizes."""
    for worker in fleet:
        for tokens in (1, 64, 2, 60, 1, 1):
            worker.step_cost.add(tokens, base + slope * tokens)


def start(fleet: Fleet, new: Sequence, local: int = 1000, **weights: float) -> str:
    policy = CostBased(SCORES | weights)
    return policy.start(new, with_room(new, prefill_candidates(new, fleet, local)), fleet).name


# Filters.


@pytest.mark.parametrize(
    ("names", "local", "expected"),
    [
        ("bpd", 0, "bp"),
        ("bpd", 40, "bpd"),
        ("pd", 39, "p"),
        ("de", 0, "de"),
    ],
)
def test_who_may_begin(names: str, local: int, expected: str) -> None:
    assert "".join(w.name for w in prefill_candidates(arrive(40), fleet(*names), local)) == expected


def test_what_is_known_to_a_decode_worker_is_not_new_to_it() -> None:
    made = fleet("p", "d", "e")
    know(at(made, "e"), arrive(40))
    assert [w.name for w in prefill_candidates(arrive(44), made, 8)] == ["p", "e"]


def test_a_prefill_worker_is_no_landing_nor_is_one_without_room() -> None:
    made = fleet("p", "b", "d", "e", max_num_seqs=2)
    busy(at(made, "d"), 2)
    assert [w.name for w in decode_candidates(arrive(), made)] == ["b", "e"]


# Scores.


def test_each_score_is_what_it_says() -> None:
    made = fleet("b1", "b2")
    measure(made)
    one, new = at(made, "b1"), arrive(40)
    know(one, arrive(40))
    busy(one, 3)
    first = beginning(new, one, one.kv.num_cached_tokens(new), average(made))
    assert first.prefill == pytest.approx(0.004)  # 4 of 40 tokens: the last page must run.
    assert first.interference == pytest.approx(0.012)
    assert first.wait == pytest.approx(0.01 + 0.001 * 3)
    assert beginning(new, at(made, "b2"), 0, average(made)).prefill == pytest.approx(0.04)
    end = decode_target(new, one, one.kv.num_cached_tokens(new), average(made))
    assert end.score.decode == pytest.approx(100 * (0.01 + 0.001 * 6))
    assert end.num_bytes == 4 * 1000
    assert end.score.eviction == 0.0 == end.score.transfer


def test_what_would_have_to_make_room_is_counted() -> None:
    made = fleet("b", num_pages=16)
    measure(made)
    for first in (100, 200, 300):
        know(at(made, "b"), arrive(20, first))
    # Fifteen pages are cached, one is free: ten are needed.
    assert decode_target(
        arrive(40), at(made, "b"), 0, average(made)
    ).score.eviction == pytest.approx(0.001 * 9 * SIZE)


def test_one_that_has_only_decoded_is_priced_like_the_others() -> None:
    made = fleet("p", "d")
    assert price(at(made, "d"), average(made)) == (0.01, 0.0001)
    for _ in range(9):
        at(made, "d").step_cost.add(4, 0.05)
    assert not at(made, "d").step_cost.varied
    for tokens in (1, 64, 2, 60, 1, 1):
        at(made, "p").step_cost.add(tokens, 0.05 + 0.001 * (tokens - 4))
    assert price(at(made, "d"), average(made)) == pytest.approx((0.046, 0.001))


# Picks.


def test_of_equals_the_least_loaded_takes_it() -> None:
    made = fleet("b1", "b2")
    assert start(made, arrive()) == "b1"
    at(made, "b1").place(arrive(first=500), 0)
    assert start(made, arrive()) == "b2"


def test_the_one_that_knows_the_prompt_takes_it_until_it_is_too_busy() -> None:
    made = fleet("b1", "b2")
    measure(made, slope=0.0001)
    know(at(made, "b2"), arrive(40))
    assert start(made, arrive(44), decode=0.1) == "b2"
    busy(at(made, "b2"), 7)
    assert start(made, arrive(44), decode=0.1) == "b1"


def test_a_prompt_starts_where_it_decodes_while_that_is_cheaper_than_to_move_it() -> None:
    made = fleet("p", "d")
    measure(made, base=0.0001)
    new = arrive(40, max_tokens=1)
    assert start(made, new) == "d"
    busy(at(made, "d"), 6)
    assert start(made, new) == "p"
    assert start(made, new, transfer=1000.0) == "d"
    assert start(made, new, local=39, transfer=1000.0) == "p"


def test_the_prefill_worker_and_the_landing_are_chosen_together() -> None:
    made = fleet("p", "q", "d")
    links = TransferCost()
    policy = CostBased(SCORES, links)
    measure(made)
    links.add("p", "d", 40_000, 4.0)
    links.add("q", "d", 40_000, 0.001)
    new = arrive(40)
    assert policy.start(new, with_room(new, prefill_candidates(new, made, 0)), made).name == "q"
    know(at(made, "d"), arrive(40))
    # Now there is hardly anything to move, and names decide.
    links.add("p", "d", 40_000, 0.001)
    assert policy.start(new, with_room(new, prefill_candidates(new, made, 0)), made).name in {
        "p",
        "q",
    }


def test_it_lands_where_its_keys_are_or_get_to_soonest() -> None:
    made = fleet("p", "d", "e")
    policy = CostBased(SCORES)
    measure(made)
    new = arrive(40)
    both = decode_candidates(new, made)
    assert policy.place_decode(new, at(made, "p"), both, made).name == "d"
    know(at(made, "e"), arrive(40))
    assert policy.place_decode(new, at(made, "p"), both, made).name == "e"
    policy.links.add("p", "d", 40_000, 0.0001)
    policy.links.add("p", "e", 40_000, 30.0)
    assert policy.place_decode(new, at(made, "p"), both, made).name == "d"


def test_in_turn_is_by_name_and_skips_who_cannot() -> None:
    made, policy = fleet("b1", "b2", "b3"), RoundRobin(SCORES)
    workers = list(made)
    names = [policy.start(arrive(), workers, made).name for _ in range(4)]
    assert names == ["b1", "b2", "b3", "b1"]
    assert policy.start(arrive(), [workers[0], workers[2]], made).name == "b3"
    before = policy.layout()
    assert policy.place_decode(arrive(), workers[0], workers[1:], made).name == "b2"
    assert policy.layout() != before


def test_the_least_loaded_is_the_one_with_the_fewest_rows() -> None:
    made, policy = fleet("b1", "b2"), LeastLoaded(SCORES)
    busy(at(made, "b1"), 1)
    know(at(made, "b1"), arrive(40))
    assert policy.start(arrive(40), list(made), made).name == "b2"
    assert policy.place_decode(arrive(40), at(made, "b1"), list(made), made).name == "b2"


def test_a_weight_of_0_takes_a_score_out() -> None:
    made = fleet("b1", "b2")
    measure(made)
    know(at(made, "b2"), arrive(40))
    assert start(made, arrive(44)) == "b2"
    assert start(made, arrive(44), **parse_scores("prefill=0,eviction=0,wait=0")) == "b1"


def named(request: str) -> Sequence:
    """A sequence of a request."""
    one = arrive()
    one.submit = structs.replace(one.submit, request=request)
    return one


def test_a_request_belongs_to_the_worker_of_its_number_whatever_they_do() -> None:
    policy, made = Modulo(SCORES), fleet("b1", "b2", "b3", max_num_seqs=2)
    workers = list(made)[::-1]
    requests = [f"cmpl-{number}" for number in range(300)]
    owners = [policy.owners(named(request), workers)[0].name for request in requests]
    assert owners == [f"b{1 + crc32(request.encode()) % 3}" for request in requests]
    assert all(70 < owners.count(name) < 130 for name in ("b1", "b2", "b3"))
    busy(at(made, "b1"), 2)
    assert [policy.owners(named(r), workers)[0].name for r in requests] == owners
    assert [policy.rank(at(made, name), made) for name in ("b1", "b2", "b3")] == [0, 1, 2]


def test_who_drains_or_only_decodes_has_no_rank() -> None:
    policy, made = Modulo(SCORES), fleet("b1", "b2", "d")
    at(made, "b1").draining = True
    assert [policy.rank(at(made, name), made) for name in ("b1", "b2", "d")] == [-1, 0, -1]
    assert [
        w.name for w in policy.owners(named("x"), prefill_candidates(named("x"), made, 1000))
    ] == ["b2"]
    assert CostBased(SCORES).rank(at(made, "b2"), made) == -1


# In the state.


@pytest.mark.row("F14.08")
def test_a_request_waits_for_its_owner_and_a_replay_finds_the_same(tmp_path: Path) -> None:
    """Although the other one has room. Its choices share a rank; when the owner is gone, what it
    had is dealt out anew."""
    world = Recorded(
        tmp_path / "r", SchedulerOptions(placement_policy="modulo", max_steps_per_plan=1)
    )
    for name in ("b1", "b2"):
        world.join(name, info(max_num_seqs=2))
    own = {f"b{1 + crc32(f'r{n}'.encode()) % 2}": f"r{n}" for n in range(10)}
    for number in range(3):
        world.submit([number, 7, 8], Sampling(20), name=own["b1"])
    world.round()
    assert len(at(world.state.fleet, "b1").batch) == 2 and len(world.state.queue) == 1
    assert len(at(world.state.fleet, "b2").batch) == 0
    world.submit([9, 7, 8], Sampling(20), name=own["b2"])
    world.lose_worker("b1")
    world.round()
    assert len(at(world.state.fleet, "b2").batch) == 2, "as many as it has rows"
    world.finish()
    assert world.state.counters.finished == 4
    world.recorder.close()
    assert replay(tmp_path / "r").difference is None


class Timed(Recorded):
    """A world in which keys take their time to one of the workers."""

    slow = ""

    def apply(self, event: Event) -> list[Decision]:
        if isinstance(event, Transferred):
            micros = 40_000_000 if event.worker == self.slow else 1_000
            pulled = structs.replace(event.pulled, num_bytes=40_000, duration_us=micros)
            event = Transferred(event.worker, pulled)
        return super().apply(event)


def test_speeds_come_in_with_events_and_decide(tmp_path: Path) -> None:
    """The same sequences, pulled at different speeds, go to different workers; and again so when
    the recording is replayed."""
    steps, layouts = [], []
    for slow in ("d", "e"):
        world = Timed(
            tmp_path / slow, SchedulerOptions(local_prefill_max_tokens=0, max_steps_per_plan=1)
        )
        world.slow = slow
        for name in ("p", "d", "e"):
            given = info(ROLES[name], num_pages=256)
            world.join(name, structs.replace(given, kv_address=name))
        for number in range(12):
            world.submit([number, *range(100, 140)], Sampling(30))
            for _ in range(4):
                world.round()
        world.finish()
        steps.append({worker.name: worker.steps for worker in world.state.fleet})
        layouts.append(world.state.placement.layout())
        world.recorder.close()
        assert replay(tmp_path / slow).difference is None
    assert steps[0]["e"] > 2 * steps[0]["d"] and steps[1]["d"] > 2 * steps[1]["e"]
    assert layouts[0] != layouts[1]
