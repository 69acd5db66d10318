"""Frames on streams: what is sent is received, and where a stream ends is told."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import pytest

from baton.net import frames
from baton.net.frames import OversizedFrame, TruncatedFrame

PARTS = (b"one", b"", b"three" * 1000)


def test_frames_come_out_as_they_went_in() -> None:
    stream = io.BytesIO(b"".join(map(frames.pack, PARTS)))
    assert tuple(frames.read(stream) for _ in PARTS) == PARTS
    assert frames.read(stream) is None


def test_the_format_is_stable() -> None:
    """Recordings outlive the version that wrote them."""
    stream = io.BytesIO()
    frames.send(stream, b"abc")
    assert stream.getvalue() == frames.pack(b"abc") == b"\3\0\0\0abc"


def test_a_sent_frame_is_flushed() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as target:
        frames.send(target, b"now")
        assert frames.receive(source) == b"now"


@pytest.mark.parametrize("data", [b"\5\0\0", b"\5\0\0\0", b"\5\0\0\x001234"])
def test_a_cut_frame_is_the_end_of_a_pipe_and_an_error_in_a_file(data: bytes) -> None:
    assert frames.receive(io.BytesIO(data)) is None
    with pytest.raises(TruncatedFrame):
        frames.read(io.BytesIO(data))


def test_a_large_frame_is_not_read() -> None:
    stream = io.BytesIO(frames.pack(b"12345"))
    with pytest.raises(OversizedFrame, match="5 bytes, at most 4"):
        frames.read(stream, max_bytes=4)
    assert stream.read() == b"12345"


@pytest.mark.parametrize("write", [frames.pack, lambda data: frames.send(io.BytesIO(), data)])
def test_a_length_that_the_prefix_cannot_state_is_refused(
    write: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_BYTES", 4)
    with pytest.raises(OversizedFrame):
        write(b"12345")
