"""An encoding lives while a sequence waits for it, and holds back what needs it."""

from __future__ import annotations

from baton_scheduler.disaggregation.embedding_pulls import EmbeddingPulls
from baton_scheduler.disaggregation.encoding import Encoding, EncodingWait
from baton_scheduler.disaggregation.encoding_waits import EncodingWaits
from baton_scheduler.sequence import UNLIMITED
from tests.support.media_sequences import arrived, image


def test_an_encoding_ends_with_the_last_sequence_that_waits() -> None:
    ended: list[Encoding] = []
    waits = EncodingWaits(EmbeddingPulls(), ended.append)
    item = image("a", 1)
    encoding = Encoding("", item, digest=item.digest)
    first, second = arrived(item), arrived(item, arrival=2)
    for sequence in (first, second, second):
        waits.add(EncodingWait(sequence, 0), encoding)
        waits.update(sequence)
    waits.check()
    assert waits.get("", item.digest) is encoding and waits.num_queued_tokens("") == 4
    assert [first.num_awaited, second.num_awaited] == [1, 1]
    waits.release(first)
    assert not ended and first.num_awaited == 0 and first.prefill_limit == UNLIMITED
    waits.give_up(encoding)
    assert ended == [encoding] and not list(waits) and second.num_awaited == 0
    waits.check()
