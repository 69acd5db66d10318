"""Pooled sequences: run once, in one step if required, and answered completely."""

from __future__ import annotations

import random

import msgspec
import pytest

from baton.errors import WireError
from baton.protocol import Pooled, Pooling, PoolingInfo, Result, Sampling, Submit, WorkerInfo
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.events import Arrived, Settled
from baton_scheduler.observability.stats import stats
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.results.step_result import apply_result
from tests.fakes.hash_worker import vector, worker_info
from tests.support.scheduler_world import Request, World

NONE = Sampling(0)
LAST, EVERY, WHOLE = Pooling("last"), Pooling("every"), Pooling("whole")


def encoder(**fields: int) -> WorkerInfo:
    info = worker_info(**fields)
    pooling = PoolingInfo("embed", 3, "whole", info.max_model_len)
    return msgspec.structs.replace(info, pooling=pooling)


def world(info: WorkerInfo | None = None, **limits: object) -> World:
    here = World(SchedulerOptions(**limits))  # type: ignore[arg-type]
    here.join("w", info or worker_info())
    return here


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


def finish(here: World, rounds: int = 200) -> None:
    for _ in range(rounds):
        here.round()
        if all(request.end for request in here.requests.values()):
            return
    raise AssertionError("something did not end")


def answered(request: Request) -> bool:
    return request.vector == vector(pack(request.prompt)) and request.end == "stop"


@pytest.mark.parametrize("pooling", [LAST, EVERY, WHOLE])
def test_a_vector_ends_its_sequence_and_frees_its_pages(pooling: Pooling) -> None:
    here = world()
    texts = [here.submit(prompt(n, n), NONE, pooling=pooling) for n in (1, 16, 17, 200)]
    finish(here)
    assert all(map(answered, texts)) and here.state.idle
    assert not here.state.fleet.get("w").pool.num_held  # type: ignore[union-attr]
    assert not any(1 in unpack(plan.samples, "B") for plan in here.plans)


def test_a_long_text_runs_in_chunks_unless_it_must_not() -> None:
    here = world(worker_info(max_num_batched_tokens=32))
    here.submit(prompt(80), NONE, pooling=EVERY)
    finish(here)
    assert [sum(unpack(plan.num_scheduled, "I")) for plan in here.plans if plan.rows] == [
        32,
        32,
        16,
    ]
    other = world(worker_info(max_num_batched_tokens=32))
    refused = other.submit(prompt(33), NONE, pooling=WHOLE)
    fits = other.submit(prompt(32), NONE, pooling=WHOLE)
    finish(other)
    assert refused.failed is not None and refused.failed.code == "context_length_exceeded"
    assert answered(fits)


def test_whole_texts_share_a_step_and_wait_for_one_with_room() -> None:
    """Between running sequences too, and in their order."""
    here = world(worker_info(max_num_batched_tokens=40))
    spoken = [here.submit(prompt(3, i), Sampling(30, seed=i)) for i in range(4)]
    here.round()
    texts = [here.submit(prompt(n, n), NONE, pooling=WHOLE) for n in (20, 16, 30, 36)]
    finish(here)
    assert all(map(answered, texts)) and all(len(r.tokens) == 30 for r in spoken)
    totals = [sum(unpack(plan.num_scheduled, "I")) for plan in here.plans]
    assert max(totals) == 40, "the first two fit beside four decode rows"


def test_an_encoder_has_its_own_budget() -> None:
    """Nobody decodes beside it, so the scheduler's bound on a step does not cut its texts."""
    here = world(encoder(max_num_batched_tokens=256), max_num_batched_tokens=64)
    worker = here.state.fleet.get("w")
    assert worker is not None and worker.budget == 256 and not worker.caching
    here.state.options = msgspec.structs.replace(here.state.options, max_num_batched_tokens=256)
    text = here.submit(prompt(200), NONE, pooling=WHOLE)
    finish(here)
    assert answered(text)


def test_only_a_last_state_comes_from_the_cache() -> None:
    same = prompt(64)
    here = world()
    for pooling in (LAST, EVERY, WHOLE, LAST):
        here.submit(same, NONE, pooling=pooling)
        finish(here)
    starts = [unpack(plan.num_computed, "I")[0] for plan in here.plans if plan.rows]
    assert starts[0] == starts[1] == starts[2] == 0 and starts[3] >= 48


def test_keys_that_have_seen_both_ways_are_nobody_elses() -> None:
    same = prompt(64)
    here = world()
    here.submit(same, NONE, pooling=WHOLE)
    finish(here)
    spoken = here.submit(same, Sampling(4))
    finish(here)
    assert spoken.cached is None and len(spoken.tokens) == 4


@pytest.mark.parametrize("pooling", [EVERY, WHOLE])
def test_a_lost_worker_is_a_rerun(pooling: Pooling) -> None:
    here = world(worker_info(max_num_batched_tokens=64))
    texts = [here.submit(prompt(60, i), NONE, pooling=pooling) for i in range(3)]
    here.tick()
    here.run()
    here.lose_worker()
    here.join("v", worker_info(max_num_batched_tokens=64))
    finish(here)
    assert all(map(answered, texts))


def test_a_vector_that_does_not_come_is_computed_again_but_not_for_ever() -> None:
    here = world()
    text = here.submit(prompt(5), NONE, pooling=EVERY)
    here.peers["w"].engine.withhold = True
    here.round()
    here.peers["w"].engine.withhold = False
    finish(here)
    assert answered(text)
    never = here.submit(prompt(6), NONE, pooling=EVERY)
    here.peers["w"].engine.withhold = True
    finish(here)
    assert never.failed is not None and never.failed.code == "request_quarantined"


def test_what_fails_alone_costs_nobody_else() -> None:
    here = World()
    here.join("w", worker_info(), fail_on=7)
    bad = here.submit([7, 1], NONE, pooling=EVERY)
    good = here.submit([8, 1], NONE, pooling=EVERY)
    finish(here)
    assert bad.failed is not None and "not finite" in bad.failed.message and answered(good)


def test_an_abort_ends_it() -> None:
    here = world(worker_info(max_num_batched_tokens=16))
    here.submit(prompt(60), NONE, pooling=EVERY)
    here.round()
    here.abort("g", 1)
    for _ in range(4):
        here.round()
    assert here.state.idle


def test_a_late_vector_is_dropped() -> None:
    here = world()
    text = here.submit(prompt(5), NONE, pooling=EVERY)
    here.tick()
    here.run()
    here.abort("g", 1)
    here.deliver()
    assert text.vector is None


@pytest.mark.parametrize(
    "pooled",
    [
        Pooled(pack([99], "I"), pack([1], "I"), bytes(4)),
        Pooled(pack([0, 0], "I"), pack([1, 1], "I"), bytes(8)),
        Pooled(pack([0], "I"), pack([2], "I"), bytes(4)),
    ],
)
def test_a_damaged_vector_is_refused_with_its_result(pooled: Pooled) -> None:
    here = world()
    text = here.submit(prompt(5), NONE, pooling=EVERY)
    here.tick()
    here.run()
    result = msgspec.structs.replace(here.peers["w"].results.popleft(), pooled=pooled)
    worker = here.state.fleet.get("w")
    assert worker is not None
    with pytest.raises(WireError):
        apply_result(worker, worker.flights.first, result)
    here.apply(Settled("w", result))
    finish(here)
    assert answered(text)


def test_a_vector_of_a_slot_that_has_not_ended_is_dropped() -> None:
    here = world(worker_info(max_num_batched_tokens=8))
    text = here.submit(prompt(12), NONE, pooling=EVERY)
    here.tick()
    here.run()
    early = Pooled(pack([0], "I"), pack([1], "I"), bytes(4))
    result: Result = here.peers["w"].results.popleft()
    here.apply(Settled("w", msgspec.structs.replace(result, pooled=early)))
    assert text.end is None and text.vector is None
    finish(here)
    assert answered(text)


@pytest.mark.parametrize("fields", [{"sampling": Sampling(3)}, {"log": pack([1])}])
def test_tokens_and_a_vector_are_not_wanted_at_once(fields: dict[str, object]) -> None:
    here = world()
    given = {"sampling": NONE, "pooling": EVERY} | fields
    submit = Submit(5, "r", pack([1, 2]), **given)  # type: ignore[arg-type]
    [reply] = here.state.apply(Arrived("g", submit))
    assert reply.message.code == "bad_frame"  # type: ignore[union-attr]


def test_what_the_model_gives_is_told() -> None:
    here = world(encoder())
    told = stats(here.state, incarnation=1, uptime=0.0, dropped_frames=0)
    assert [model.pooling for model in told.models] == [encoder().pooling]
