"""Length-prefixed frames on byte streams: pipes between processes, and files.

A frame is the length of its content, a little-endian uint32, and the content. On a pipe, a stream
that ends inside a frame means that the peer exited while writing: `receive` treats it as the end.
In a file it is an error: `read` raises.
"""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct("<I")
PREFIX_BYTES = _LENGTH.size
"""Bytes of a frame in addition to its content."""
MAX_BYTES = 2**32 - 1
"""Most bytes of content that the prefix can state."""


class TruncatedFrame(EOFError):
    """The stream ends inside a frame."""


class OversizedFrame(ValueError):
    """The length of a frame exceeds the reader's limit."""


def pack(data: bytes) -> bytes:
    """Return the frame with this content.

    Raises:
        OversizedFrame: more than `MAX_BYTES`.
    """
    return _prefix(data) + data


def send(pipe: IO[bytes], data: bytes) -> None:
    """Write one frame and flush it.

    Raises:
        OSError: the reader has exited.
        OversizedFrame: more than `MAX_BYTES`; nothing was written.
    """
    pipe.write(_prefix(data))  # Two writes: joining them would copy a large tensor.
    pipe.write(data)
    pipe.flush()


def read(stream: IO[bytes], max_bytes: int = MAX_BYTES) -> bytes | None:
    """Return the content of the next frame, or None at the end of the stream.

    Raises:
        TruncatedFrame: the stream ends inside the frame.
        OversizedFrame: its content exceeds `max_bytes`; it was not read.
    """
    prefix = stream.read(PREFIX_BYTES)
    if not prefix:
        return None
    if len(prefix) < PREFIX_BYTES:
        raise TruncatedFrame
    length = _length(prefix, max_bytes)
    data = stream.read(length)
    if len(data) < length:
        raise TruncatedFrame
    return data


def receive(pipe: IO[bytes]) -> bytes | None:
    """Wait for a frame of a process. Returns None if it has closed the pipe or exited."""
    try:
        return read(pipe)
    except TruncatedFrame:
        return None


def _prefix(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise OversizedFrame(f"a frame of {len(data)} bytes, at most {MAX_BYTES} fit")
    return _LENGTH.pack(len(data))


def _length(prefix: bytes, max_bytes: int) -> int:
    length: int = _LENGTH.unpack(prefix)[0]
    if length > max_bytes:
        raise OversizedFrame(f"a frame of {length} bytes, at most {max_bytes} are allowed")
    return length
