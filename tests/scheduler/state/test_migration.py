"""A running sequence changes its worker once its pages have been pulled."""

from __future__ import annotations

from baton.protocol import Pulled, Sampling
from baton_scheduler.events import Transferred
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler_world import World


def relay(max_num_seqs: int) -> World:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    world.join("p", worker_info(role="prefill", pages_address="p"))
    world.join("d", worker_info(role="decode", pages_address="d", max_num_seqs=max_num_seqs))
    return world


def test_sequences_move_while_the_target_has_room_and_the_source_runs_the_others() -> None:
    world = relay(max_num_seqs=1)
    requests = [world.submit([n, *range(30)], Sampling(20, seed=n)) for n in range(2)]
    world.finish()
    for request in requests:
        assert request.tokens == expected_tokens(request.prompt, request.sampling)[0]
    assert world.state.counters.handoffs >= 1
    assert world.state.counters.failed_transfers == 0


def test_a_failed_transfer_is_counted_and_moves_nothing() -> None:
    world = relay(max_num_seqs=4)
    world.state.apply(Transferred("d", Pulled(99, 1, "the network is gone")))
    assert world.state.counters.failed_transfers == 1
    assert world.state.counters.handoffs == 0


def test_a_sequence_that_has_outgrown_the_target_during_the_pull_stays() -> None:
    world = World(SchedulerOptions(local_prefill_max_tokens=0))
    world.join("p", worker_info(role="prefill", pages_address="p", max_model_len=18))
    world.join("d", worker_info(role="decode", pages_address="d", max_model_len=14, page_size=3))
    request = world.submit(list(range(12)), Sampling(6))
    world.finish()
    assert request.tokens == expected_tokens(request.prompt, request.sampling)[0]
    assert world.state.counters.handoffs == 0
