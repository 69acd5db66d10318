"""Decodes the sampled frames of untrusted video files.

The container is detected from the bytes. Limits are checked before any frame is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from baton.errors import InvalidRequest
from baton_mm_preprocess.av_container import first_stream, opened
from baton_mm_preprocess.image.decode import MAX_ASPECT, MAX_SIDE
from baton_mm_preprocess.media_errors import damaged, exceeds
from baton_mm_preprocess.processors.sizes import Size

FORMATS = ("MP4", "MOV", "WebM", "Matroska", "AVI", "GIF")
CODECS = frozenset(
    ("av1", "ffv1", "gif", "h264", "hevc", "libdav1d", "mjpeg", "mpeg4", "vp8", "vp9")
)
"""FFmpeg's names of the allowed decoders."""
_MAX_FPS = 1000
_ATOMS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
"""Types of the first box of an MP4 or QuickTime file."""


class VideoLimits(msgspec.Struct, frozen=True):
    """Limits of a clip."""

    max_pixels: int
    """Maximum pixels of a frame."""
    max_frames: int
    """Maximum frames of the file."""
    max_seconds: float


@dataclass(frozen=True)
class Clip:
    """A file whose header and first frame were read; see `probe`."""

    num_frames: int
    fps: float
    """Frames per second, on average."""
    size: Size
    """Height and width of a frame, upright."""
    data: bytes
    max_pixels: int

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.num_frames / self.fps

    def frames(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        """Decode the frames with these ascending indices, upright and in RGB.

        Raises:
            InvalidRequest: the file ends earlier, or is damaged.
        """
        wanted = iter(indices)
        index = next(wanted, None)
        with _opened(self.data) as container:
            for number, frame in enumerate(container.decode(video=0)):
                while index == number:
                    yield _upright(frame, self.max_pixels)
                    index = next(wanted, None)
                if index is None:
                    return
        raise _damaged()


def probe(data: bytes, limits: VideoLimits) -> Clip:
    """Read the header of a file, and its first frame.

    Raises:
        InvalidRequest: it is not one of `FORMATS`, is damaged, or exceeds a limit.
    """
    with _opened(data) as container:
        stream = _checked_stream(container, limits)
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        if not 0 < fps <= _MAX_FPS:
            raise _damaged()
        _check_length(stream.frames or _duration_frames(stream, fps), fps, limits)
        first, counted = _first_and_count(container, 0 if stream.frames else limits.max_frames)
        count = stream.frames or counted
        _check_length(count, fps, limits)
        return Clip(count, fps, _upright_size(first), data, limits.max_pixels)


def _opened(data: bytes) -> AbstractContextManager[Any]:
    return opened(data, demuxer(data), CODECS, "video")


def _checked_stream(container: Any, limits: VideoLimits) -> Any:
    """The first video stream of a container with an allowed decoder and frame size."""
    stream = first_stream(container, "video", CODECS, "H.264, H.265, AV1, VP8 or VP9")
    context = stream.codec_context
    _check_size(context.width, context.height, limits.max_pixels)
    return stream


def _duration_frames(stream: Any, fps: float) -> int:
    """Number of frames according to the duration in the header; 0 if it has none."""
    return int(stream.duration * stream.time_base * fps) if stream.duration else 0


def _first_and_count(container: Any, most: int) -> tuple[Any, int]:
    """The first frame, and the number of frames, counted up to one more than `most`."""
    first, count = None, 0
    for frame in container.decode(video=0):
        first = first or frame
        count += 1
        if count > most:
            break
    if first is None:
        raise _damaged()
    return first, count


def _upright_size(frame: Any) -> Size:
    sideways = frame.rotation % 180 == 90
    return (frame.width, frame.height) if sideways else (frame.height, frame.width)


def _upright(frame: Any, max_pixels: int) -> Image.Image:
    """The frame rotated according to the file. The size may change from frame to frame."""
    _check_size(frame.width, frame.height, max_pixels)
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return Image.fromarray(np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise _damaged()
    if max(width, height) > MAX_SIDE or width * height > max_pixels:
        raise _large(f"has frames of {width} x {height} pixels, more than {max_pixels} in total")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise _large(f"is more than {MAX_ASPECT} times as long as it is wide")


def _check_length(count: int, fps: float, limits: VideoLimits) -> None:
    if count > limits.max_frames:
        raise _large(f"has more than {limits.max_frames} frames")
    if count / fps > limits.max_seconds:
        raise _large(f"is longer than {limits.max_seconds:g} s")


def demuxer(data: bytes) -> str:
    """FFmpeg's name of the container. Raises `InvalidRequest` for one that is not supported."""
    if data[4:8] in _ATOMS:
        return "mp4"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    raise InvalidRequest(
        "You uploaded an unsupported video. Please make sure your video has one of the following "
        f"formats: {', '.join(FORMATS)}.",
        code="invalid_video_format",
    )


def _large(how: str) -> InvalidRequest:
    return exceeds("video", how)


def _damaged() -> InvalidRequest:
    return damaged("video")
