"""What one sequence waits for, and whose pixels are encoded."""

from __future__ import annotations

from baton_scheduler.disaggregation.encoding import Encoding, EncodingWait
from baton_scheduler.sequence import UNLIMITED
from tests.support.media_sequences import arrived, image


def test_the_tokens_before_the_first_missing_item_may_run() -> None:
    media = (image("a", 1), image("b", 6), image("a", 11))
    first, second = (Encoding("", item, digest=item.digest) for item in media[:2])
    wait = EncodingWait(arrived(*media), 0)
    assert wait.limit([]) == UNLIMITED
    assert wait.limit([second]) == 6 and wait.limit([second, first]) == 1


def test_pixels_are_those_of_a_sequence_that_waits() -> None:
    mine = image("a", 1, b"new")
    encoding = Encoding("", image("k", 1, b"old"), digest=mine.digest, waiting=[arrived(mine)])
    encoding.take_pixels()
    assert encoding.item.pixels.data == b"new" and encoding.item.digest == b"k" * 32
