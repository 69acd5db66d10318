"""Reports survive the pipe, and its end is the end."""

from __future__ import annotations

import os

import msgspec
import pytest

from baton.net import frames
from baton.protocol import Pulled
from baton_worker.executor.reports import (
    Ended,
    Progressed,
    Reports,
    Serving,
    send,
)

ENDED = Ended(Pulled(2**62, 7, "why", 100, 5, "shm"))


def test_reports_come_out_as_they_went_in() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read:
        with os.fdopen(writing, "wb") as write:
            send(write, Serving("tcp://127.0.0.1:1"))
            send(write, ENDED)
            send(write, Progressed(3))
        reports = Reports(read)
        assert reports.next() == Serving("tcp://127.0.0.1:1")
        assert reports.next() == ENDED
        assert reports.next() == Progressed(3)
        assert reports.next() is None


def test_anything_else_is_refused() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read:
        with os.fdopen(writing, "wb") as write:
            frames.send(write, msgspec.msgpack.encode([1]))
        with pytest.raises(msgspec.ValidationError):
            Reports(read).next()
