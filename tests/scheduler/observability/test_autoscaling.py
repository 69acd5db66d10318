"""How many workers of a role are wanted, and why."""

from __future__ import annotations

import pytest

from baton.protocol import RoleStats, Sampling
from baton_scheduler.events import WorkerDraining
from baton_scheduler.observability.autoscaling import (
    Targets,
    capacity,
    desired_workers,
    roles,
)
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World

PROMPT = list(range(100, 140))


def world(*workers: tuple[str, str], **fields: int) -> World:
    """Workers by name and role."""
    made = World(SchedulerOptions(local_prefill_max_tokens=0))
    for name, role in workers:
        made.join(name, worker_info(role=role, pages_address=name, **fields))
    return made


def of(made: World, role: str, targets: Targets | None = None) -> RoleStats:
    [found] = [r for r in roles(made.state, targets or Targets()) if r.role == role]
    return found


@pytest.mark.parametrize(
    ("ready", "pressure", "desired"),
    [
        (3, 1.0, 3),
        (3, 1.09, 3),
        (3, 1.11, 4),
        (3, 9.0, 6),
        (3, 0.92, 3),
        (4, 0.5, 2),
        (4, 0.0, 1),
        (0, 0.0, 1),
    ],
)
def test_a_role_grows_with_the_largest_pressure(ready: int, pressure: float, desired: int) -> None:
    assert desired_workers(ready, pressure) == desired


def test_nothing_to_do_wants_one_of_each_role() -> None:
    made = world(("p", "prefill"), ("q", "prefill"), ("d", "decode"))
    found = {r.role: (r.ready, r.desired) for r in roles(made.state, Targets())}
    assert found == {"decode": (1, 1), "prefill": (2, 1)}
    made.apply(WorkerDraining("q"))
    assert of(made, "prefill").ready == 1


def test_a_queue_is_of_those_who_begin_sequences() -> None:
    made = world(("p", "prefill"), ("d", "decode"), max_num_seqs=1)
    for number in range(2):  # The first is being computed: it is nobody else's yet.
        made.submit([number, *PROMPT], Sampling(50))
        made.tick(0.0)
    made.tick(3.0)
    made.tick(1.0)
    prefill, decode = of(made, "prefill"), of(made, "decode")
    assert prefill.queue_seconds == pytest.approx(4.0)
    assert prefill.pressure["queue"] == pytest.approx(2.0) and prefill.desired == 2
    assert decode.pressure["queue"] == 0.0


def test_what_nobody_takes_over_waits_for_decode_workers() -> None:
    made = world(("p", "prefill"), ("d", "decode"))
    made.lose_worker("d")
    made.join("d", worker_info(role="decode", max_num_seqs=1, pages_address="d"))
    for number in range(2):
        made.submit([number, *PROMPT], Sampling(400))
    for _ in range(20):
        made.round()
    made.tick(6.0)
    prefill, decode = of(made, "prefill"), of(made, "decode")
    assert decode.queue_seconds > 6.0 and decode.desired == 2
    assert prefill.pressure["queue"] == 0.0


def test_alone_decode_workers_have_the_queue_too() -> None:
    made = world(("d", "decode"), max_num_seqs=1)
    for number in range(2):
        made.submit([number, *PROMPT], Sampling(400))
    made.round()
    made.tick(4.0)
    assert of(made, "decode").queue_seconds >= 4.0


def test_first_tokens_count_while_something_waits() -> None:
    made = world(("w", "both"), max_num_seqs=1)
    for number in range(2):
        made.submit([number, *PROMPT], Sampling(50))
    made.tick(1.0)
    made.run()
    made.hear(5.0)
    made.deliver()
    made.tick(0.5)
    found = of(made, "both")
    assert found.ttft_seconds == pytest.approx(6.0)
    assert found.pressure["ttft"] == pytest.approx(3.0)
    made.finish()
    found = of(made, "both")
    assert found.ttft_seconds > 0 and found.pressure["ttft"] == 0.0


def test_the_time_between_tokens_counts_where_sequences_share_a_worker() -> None:
    made = world(("w", "both"))
    targets = Targets(itl=0.05)
    made.submit(PROMPT, Sampling(50))
    for _ in range(9):
        made.tick(0.2)
        made.run()
        made.deliver()
    alone = of(made, "both", targets)
    assert alone.itl_seconds == pytest.approx(0.2) and alone.pressure["itl"] == 0.0
    made.submit([1, *PROMPT], Sampling(50))
    for _ in range(9):
        made.tick(0.2)
        made.run()
        made.deliver()
    shared = of(made, "both", targets)
    assert shared.pressure["itl"] == pytest.approx(4.0) and shared.desired == 2


def test_a_pause_without_work_is_no_time_between_tokens() -> None:
    made = world(("w", "both"))
    for _ in range(3):
        made.submit(PROMPT, Sampling(4))
        made.finish()
        made.tick(100.0)
    assert of(made, "both").itl_seconds < 1.0


def test_pages_that_are_held_count() -> None:
    made = world(("w", "both"), num_pages=8)
    made.submit([1] * 16 * 5, Sampling(9))
    made.tick()
    worker = made.state.fleet.get("w")
    assert worker is not None and worker.pool.num_held >= 5
    assert of(made, "both").pressure["kv"] == pytest.approx(worker.pool.num_held / 8 / 0.8)


def test_computing_counts_against_what_full_steps_reach() -> None:
    made = world(("w", "both"))
    worker = made.state.fleet.get("w")
    assert worker is not None and capacity(worker) == 0.0
    for tokens in (1, 256, 1, 1, 1):
        worker.step_cost.add(tokens, 0.01 + 0.001 * tokens)
    assert capacity(worker) == pytest.approx(256 / 0.266)
    worker.latency.computed.rate = 500.0
    assert of(made, "both").pressure["compute"] == pytest.approx(500 / capacity(worker) / 0.8)
    made.state.queue.of("").num_tokens = 5 * round(capacity(worker))
    assert of(made, "both").queue_seconds == pytest.approx(5.0, rel=1e-2)
