"""Frames of events."""

from __future__ import annotations

from baton_gateway.streaming.event_frames import EventFrames, NamedFrames, NumberedFrames


def test_plain_events_begin_with_their_data() -> None:
    frames = EventFrames()
    assert frames.event(b"{}") == frames.error(b"{}") == b"data: {}\n\n"


def test_events_are_named_by_their_type() -> None:
    frames, payload = NamedFrames(), b'{"type":"ping","x":1}'
    assert frames.event(payload) == frames.error(payload)
    assert frames.event(payload) == b'event: ping\ndata: {"type":"ping","x":1}\n\n'


def test_events_are_numbered_and_errors_are_not() -> None:
    frames = NumberedFrames("s", first=3)
    assert frames.event(b"{}") == b"id: s:3\ndata: {}\n\n"
    assert frames.error(b"{}") == b"data: {}\n\n"
    assert frames.event(b"[DONE]") == b"id: s:4\ndata: [DONE]\n\n"
