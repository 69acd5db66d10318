"""Statistics sent to gateways."""

from __future__ import annotations

from baton.protocol import Sampling, Stats
from baton_scheduler.events import WorkerDraining
from baton_scheduler.observability.stats import stats
from tests.fakes.hash_worker import VOCAB, worker_info
from tests.support.scheduler_world import World


def snapshot(world: World, **hung: object) -> Stats:
    return stats(
        world.state,
        incarnation=1,
        uptime=2.0,
        dropped_frames=3,
        hung=list(hung.items()),  # type: ignore[arg-type]
    )


def test_without_workers_there_is_no_model() -> None:
    empty = snapshot(World())
    assert (empty.models, empty.workers) == ((), ())


def test_the_length_is_one_that_every_worker_can_run() -> None:
    world = World()
    world.join("a", worker_info(max_model_len=100))
    world.join("b", worker_info(num_pages=3, page_size=4))
    assert [model.max_model_len for model in snapshot(world).models] == [12]


def test_each_model_is_described_by_its_workers() -> None:
    world = World()
    world.join("a", worker_info(model="small", max_model_len=100, vocab_size=50))
    world.join("b", worker_info(model="large", max_model_len=900))
    now = snapshot(world)
    found = {m.name: (m.max_model_len, m.vocab_size) for m in now.models}
    assert found == {"large": (900, VOCAB), "small": (100, 50)}
    assert {w.name: w.model for w in now.workers} == {"a": "small", "b": "large"}


def test_numbers_follow_the_work() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=1, num_pages=8, page_size=4))
    for number in range(3):
        world.submit([number] * 5, Sampling(4))
    world.round()
    now = snapshot(world)
    assert (now.running, now.waiting, now.waiting_tokens, now.prompt_tokens) == (1, 2, 10, 15)
    (worker,) = now.workers
    assert (worker.state, worker.running, worker.pages_free) == ("ready", 1, 6)
    world.finish()
    done = snapshot(world)
    assert (done.finished, done.tokens, done.running) == (3, 12, 0)
    assert done.workers[0].pages_free == done.workers[0].pages_total == 8
    assert done.workers[0].steps > 0 and done.workers[0].step_ms > 0


def test_draining_and_hung_workers_are_shown() -> None:
    world = World()
    world.join("a")
    world.apply(WorkerDraining("a"))
    states = {w.name: w.state for w in snapshot(world, b=worker_info()).workers}
    assert states == {"a": "draining", "b": "hung"}
