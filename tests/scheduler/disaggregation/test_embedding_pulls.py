"""One transfer per item and worker, for all sequences that wait for it."""

from __future__ import annotations

from baton.protocol import Blob, Media, Pulled
from baton_scheduler.disaggregation.embedding_pulls import EmbeddingPulls, pull_token
from baton_scheduler.disaggregation.encoding import Encoding
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.arrivals import arrive


def test_sequences_share_a_transfer_and_an_earlier_epoch_ends_none() -> None:
    pulls, source = EmbeddingPulls(), EncodeWorker("e", 7, worker_info())
    target = Worker("w", 3, worker_info(), 64, caching=True)
    first, second = arrive(number=1), arrive(number=2)
    encoding = Encoding("", Media(b"k" * 32, 1, 4, Blob("uint8", (1,), b"")), id=5)
    order = pulls.add(encoding, first, source, target)
    assert order is not None and order.source_epoch == 7
    assert order.token == pull_token(5, source) != pull_token(6, source)
    assert pulls.add(encoding, second, source, target) is None
    assert pulls.waited_for(first) == pulls.waited_for(second) == [encoding]
    assert pulls.find("w", Pulled(2, 5)) is None
    pull = pulls.find("w", Pulled(3, 5))
    assert pull is not None and pull.waiting == [first, second]
    pulls.forget(first)
    assert pull.waiting == [second] and not pulls.waited_for(first)
    pulls.remove(pull)
    assert not list(pulls) and not pulls.waited_for(second)
