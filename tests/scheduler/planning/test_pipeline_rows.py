"""In a pipeline, steps of different sequences take turns; too few sequences run in every step."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from baton.protocol import Sampling
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler.one_worker import rows, world


@pytest.mark.row("F14.05")
def test_decode_rows_take_turns_in_as_many_groups_as_stages() -> None:
    for stages, windows in ((2, ()), (3, ()), (2, (0, 7))):
        info = worker_info(page_size=2, num_pages=64, max_num_batched_tokens=16)
        here = world(msgspec.structs.replace(info, pipeline_stages=stages, windows=windows))
        lengths = (20, 9, 20, 14, 20, 20)
        requests = [here.submit([n, n, n], Sampling(length, seed=n)) for n, length in
                    enumerate(lengths)]  # fmt: skip
        worker, in_flight = here.state.fleet.get("w"), 0
        assert worker is not None
        while not here.state.idle:
            here.tick()
            steps, running = list(worker.flights), len(worker.batch)
            if running == len(requests):
                in_flight = max(in_flight, len(steps))
                for number, step in enumerate(steps):
                    ahead = {slot for before in steps[:number] for slot in before.sampling}
                    assert not ahead & {*step.rows}, "a token of it is not sampled yet"
                    assert len(step.sampling) <= 6 // stages or step.num_tokens > len(step.rows)
            here.round()
        assert in_flight == stages
        for request in requests:
            wanted = expected_tokens(request.prompt, request.sampling)
            assert (request.tokens, request.end) == wanted


def test_a_single_sequence_runs_in_every_step_and_ahead_of_its_results() -> None:
    here = world(msgspec.structs.replace(worker_info(), pipeline_stages=2))
    request = here.submit([1, 2, 3], Sampling(12, seed=1))
    here.finish()
    assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
    ran = [set(rows(plan)) for plan in here.plans if rows(plan)]
    assert all(before == behind for before, behind in pairwise(ran))


def test_a_sequence_without_room_waits_for_pages_as_ever() -> None:
    """Steps in flight hold their pages; preempted sequences go on with the same tokens."""
    info = worker_info(num_pages=8, page_size=2, max_num_seqs=4)
    here = world(msgspec.structs.replace(info, pipeline_stages=2))
    requests = [here.submit([n, n, n], Sampling(9, seed=n)) for n in range(4)]
    here.finish()
    assert here.state.counters.preemptions > 0
    for request in requests:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
