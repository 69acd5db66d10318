"""Apart or local: by measured seconds."""

from __future__ import annotations

import pytest

from baton.protocol import WorkerInfo
from baton_scheduler.placement.encode_cost import worth_remote_encoding
from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.arrivals import arrive


@pytest.mark.row("F20.02")
def test_an_image_goes_where_it_costs_least() -> None:
    """With nobody beside it: the encode worker's queue, its speed and the transfer count."""
    encoder = EncodeWorker("e", 1, WorkerInfo("m", 0, 0, 0, 0, 0, 0, role="encode"))
    local, links = Worker("w", 1, worker_info(), 256, caching=True), TransferCost()

    def apart(ahead: int = 0, num_bytes: float = 0.0) -> bool:
        return worth_remote_encoding(100, num_bytes, ahead, [encoder], [local], links)

    assert apart(), "nothing is measured: that is what it was started for"
    for tokens in (50, 100):
        encoder.encode_cost.add(tokens, tokens / 1000)
    assert apart()
    for tokens in (50, 100):
        local.encode_cost.add(tokens, tokens / 500)
    assert apart(ahead=50), "0.15 s against 0.2 s"
    assert not apart(ahead=150), "its queue is too long"
    links.add("e", "w", 1000, 0.2)
    assert not apart(num_bytes=1000.0), "the transfer takes as long"
    encoder.begin(1, 400, now=0.0)
    assert not apart(), "it is busy"


def test_encoding_holds_up_all_that_runs_beside_it() -> None:
    encoder = EncodeWorker("e", 1, WorkerInfo("m", 0, 0, 0, 0, 0, 0, role="encode"))
    local = Worker("w", 1, worker_info(), 256, caching=True)
    encoder.encode_cost.add(100, 0.3)
    local.encode_cost.add(100, 0.1)
    given = (100, 0.0, 0, [encoder], [local], TransferCost())
    assert not worth_remote_encoding(*given)
    for number in range(2):
        local.place(arrive(8, number), 0)
    assert worth_remote_encoding(*given), "three sequences would wait for 0.1 s"
