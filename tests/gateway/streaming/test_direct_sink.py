"""The direct path of a stream. `test_direct_writer` compares its bytes with the queued path's."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.http.write_batch import WriteBatch
from baton_gateway.streaming.direct_sink import DirectSink
from baton_gateway.streaming.event_frames import NumberedFrames


class Words:
    """A payload per word."""

    def opening(self, started: Started) -> Iterable[bytes]:
        return ()

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        return delta.text.encode().split()

    def closing(self) -> Iterable[bytes]:
        return ()


class Body:
    """In place of the `DirectWriter` of a request."""

    def __init__(self) -> None:
        self.open = True
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def cut(self) -> None:
        raise AssertionError


def _sink(body: Any) -> DirectSink:
    scope = {"extensions": {"baton.direct": body}} if body else {}
    sink = DirectSink.of(scope, WriteBatch(), Words(), NumberedFrames("s"))
    assert sink is not None
    return sink


def _delta(text: str) -> OutputDelta:
    return OutputDelta(0, text, array("i", [1]))


def test_every_payload_is_an_event() -> None:
    body = Body()
    sink = _sink(body)
    assert sink.write(_delta("a b")) and sink.write(_delta(""))
    assert body.written == b"id: s:0\ndata: a\n\nid: s:1\ndata: b\n\n"
    assert sink.written > 0.0


def test_nothing_is_taken_before_the_body_is_open_and_after_the_end() -> None:
    body = Body()
    sink = _sink(body)
    body.open = False
    assert not sink.write(_delta("a"))
    body.open = True
    sink.close()
    assert not sink.write(_delta("a")) and body.written == b""


def test_a_server_without_direct_writes_has_no_sink() -> None:
    assert DirectSink.of({}, WriteBatch(), Words(), NumberedFrames("s")) is None
