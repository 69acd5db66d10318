"""Sequences with images, as they arrive at the scheduler."""

from __future__ import annotations

from baton.protocol import Blob, Media, Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Sequence, sequence


def image(name: str, start: int, pixels: bytes = b"") -> Media:
    """An image of four tokens."""
    return Media(name.encode() * 32, start, 4, Blob("uint8", (1,), pixels))


def arrived(*media: Media, arrival: int = 1) -> Sequence:
    """A prompt of twenty tokens with images in it."""
    submit = Submit(1, "r", pack(range(20)), Sampling(4), media=media)
    return sequence("g", submit, "", arrival, 0.0, fcfs)
