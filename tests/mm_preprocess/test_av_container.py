"""Files that FFmpeg opens."""

from __future__ import annotations

import av
import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess.av_container import opened
from tests.support.sounds import encoded, tones


def test_tags_may_have_any_encoding() -> None:
    """As the tags of many MP3 files, which are no UTF-8."""
    sound = encoded(tones(0.2))
    assert b"Lavf" in sound, "the name of the encoder is a tag"
    with opened(sound.replace(b"Lavf", b"L\xe4vf"), "wav", ["pcm_s16le"], "audio") as container:
        assert len(container.streams.audio) == 1


def test_errors_of_ffmpeg_name_the_modality() -> None:
    sound = encoded(tones(0.2))
    with opened(sound, "wav", ["pcm_s16le"], "audio") as container:
        assert len(container.streams.audio) == 1
    with (
        pytest.raises(InvalidRequest, match="The audio cannot be read") as caught,
        opened(b"RIFF\0\0\0\0WAVE" + bytes(200), "wav", ["pcm_s16le"], "audio"),
    ):
        pass
    assert caught.value.code == "audio_parse_error"
    for error, code in ((MemoryError(), "too_large"), (av.FFmpegError(1, "x"), "parse_error")):
        with pytest.raises(InvalidRequest) as caught, opened(sound, "wav", ["pcm_s16le"], "video"):
            raise error
        assert caught.value.code == f"video_{code}"
