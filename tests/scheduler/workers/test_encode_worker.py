"""What an encode worker owes, and how fast it is."""

from __future__ import annotations

from baton.protocol import WorkerInfo
from baton_scheduler.workers.encode_worker import MOST_IN_FLIGHT, EncodeWorker


def test_it_takes_a_bounded_number_and_owes_answers_in_order() -> None:
    worker = EncodeWorker("e", 1, WorkerInfo("m", 0, 0, 0, 0, 0, 0, role="encode"))
    for number in range(MOST_IN_FLIGHT):
        assert worker.free
        worker.begin(number, 100 * (number + 1), now=float(number))
    assert not worker.free and worker.waiting_since == 0.0 and worker.backlog == 0.0
    worker.end(0, 0.5, now=3.0)
    assert worker.waiting_since == 3.0 and worker.num_encoded == 1
    assert worker.backlog == 1.0, "200 embeddings at 200 per second"
    worker.end(1, 0.0, now=4.0)  # From its cache: this says nothing of its speed.
    assert worker.waiting_since is None and worker.num_encoded == 1
    assert worker.encode_cost.seconds(100, 1) == 0.5
    worker.draining = True
    assert not worker.free
