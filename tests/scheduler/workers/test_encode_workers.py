"""Which encode worker takes the next item, and whose embeddings a prefill worker accepts."""

from __future__ import annotations

from baton.protocol import WorkerInfo
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.encode_workers import EncodeWorkers
from baton_scheduler.workers.worker import Worker
from tests.fakes.hash_worker import worker_info


def fleet(*names: str, layout: str = "f32") -> EncodeWorkers:
    info = WorkerInfo("m", 0, 0, 0, 0, 0, 0, role="encode", encoder_layout=layout)
    return EncodeWorkers({name: EncodeWorker(name, 1, info) for name in names})


def test_the_next_item_goes_to_the_one_that_is_done_first() -> None:
    encoders = fleet("a", "b")
    for number, (name, count) in enumerate([("a", 200), ("b", 100)]):
        encoders[name].begin(number, count, now=0.0)
        encoders[name].encode_cost.add(100, 1.0)
    assert encoders.least_loaded("m") is encoders["b"]
    assert encoders.backlog("m", 100) == (2.0 + 1.0) / 2 + 0.5
    encoders["b"].draining = True
    assert encoders.least_loaded("m") is encoders["a"] and encoders.least_loaded("n") is None
    assert encoders.backlog("n", 100) == 0.0


def test_embeddings_of_another_layout_are_of_no_use() -> None:
    target = Worker("w", 1, worker_info(encoder_layout="f32"), 64, caching=True)
    same, other = fleet("e", layout="f32"), fleet("e", layout="f16")
    assert same.accepts(target, "e") and same.accepts(target, "") and not other.accepts(target, "e")
    assert not other.usable("m", [target])
