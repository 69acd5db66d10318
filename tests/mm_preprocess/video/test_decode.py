"""Decoding of clips: what is read, and what is refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess.video.decode import VideoLimits, probe
from tests.support.video_clips import decoded, encoded, moving

LIMITS = VideoLimits(100_000, 50, 10.0)
CLIP = encoded(moving(12, 48, 64))


def test_files_of_every_container() -> None:
    """The header's count, or, where it has none, that of the frames."""
    forms = (("mp4", "libx264"), ("matroska", "libx264"), ("webm", "libvpx-vp9"))
    for form, codec in (*forms, ("avi", "mpeg4"), ("mov", "mpeg4"), ("gif", "gif")):
        data = encoded(moving(12, 48, 64), codec=codec, form=form)
        clip = probe(data, LIMITS)
        assert (clip.num_frames, clip.size) == (12, (48, 64)), form
        assert clip.fps == pytest.approx(8, rel=0.1) and clip.seconds == 12 / clip.fps, form
        every = decoded(data)
        found = [np.asarray(frame) for frame in clip.frames([0, 5, 5, 11])]
        for index, frame in zip([0, 5, 5, 11], found, strict=True):
            assert np.array_equal(frame, every[index]), (form, index)


def test_a_clip_is_upright() -> None:
    """Phones store frames as the sensor lies, and say how to turn them."""
    import av

    out = io.BytesIO()
    with (
        av.open(io.BytesIO(CLIP)) as source,
        av.open(out, "w", format="mp4") as target,
    ):
        stream: Any = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    data = bytearray(out.getvalue())
    place = data.index(b"tkhd") + 4 + 40  # The matrix of the track header, version 0.
    one = (65_536).to_bytes(4, "big")
    minus = (-65_536).to_bytes(4, "big", signed=True)
    data[place : place + 36] = b"".join(
        [bytes(4), one, bytes(4), minus, bytes(4), bytes(4), bytes(4), bytes(4), b"\x40\0\0\0"]
    )
    clip = probe(bytes(data), LIMITS)
    assert clip.size == (64, 48)
    [frame] = clip.frames([3])
    assert np.array_equal(np.asarray(frame), np.rot90(decoded(CLIP)[3], -1))


@pytest.mark.row("F02.11")
def test_what_is_refused() -> None:
    header = CLIP.index(b"moov")
    refused: list[tuple[bytes, str, VideoLimits]] = [
        (b"", "invalid_video_format", LIMITS),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "invalid_video_format", LIMITS),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "invalid_video_format", LIMITS),
        (CLIP[: len(CLIP) // 2], "video_parse_error", LIMITS),
        (CLIP[:header] + bytes(len(CLIP) - header), "video_parse_error", LIMITS),
        (b"\0\0\0\x10ftypisom" + bytes(500), "video_parse_error", LIMITS),
        (b"GIF89a" + bytes(100), "video_parse_error", LIMITS),
        (
            encoded(moving(4, 48, 64), codec="mpeg2video", form="mov"),
            "invalid_video_format",
            LIMITS,
        ),
        (CLIP, "video_too_large", VideoLimits(1000, 50, 10.0)),
        (CLIP, "video_too_large", VideoLimits(100_000, 11, 10.0)),
        (CLIP, "video_too_large", VideoLimits(100_000, 50, 1.4)),
        (encoded(moving(12, 48, 64), form="matroska"), "video_too_large", VideoLimits(10**5, 5, 9)),
    ]
    for data, code, limits in refused:
        with pytest.raises(InvalidRequest) as caught:
            list(probe(data, limits).frames([0, 11]))
        assert (caught.value.status, caught.value.code) == (400, code), data[:20]
    with pytest.raises(InvalidRequest, match="cut off"):
        list(probe(CLIP, LIMITS).frames([0, 12]))
