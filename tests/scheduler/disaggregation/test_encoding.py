"""What one sequence waits for, and whose pixels are encoded."""

from __future__ import annotations

from baton.protocol import Blob, Media, Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.disaggregation.encoding import Encoding, EncodingWait
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import UNLIMITED, Sequence, sequence


def image(name: str, start: int, pixels: bytes = b"") -> Media:
    return Media(name.encode() * 32, start, 4, Blob("uint8", (1,), pixels))


def arrived(*media: Media) -> Sequence:
    submit = Submit(1, "r", pack(range(20)), Sampling(4), media=media)
    return sequence("g", submit, "", 1, 0.0, fcfs)


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
