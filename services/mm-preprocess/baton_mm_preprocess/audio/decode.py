"""Decodes untrusted audio files to mono samples at the model's sample rate.

The container is detected from the bytes. The header is checked before any sample is decoded.
Samples are mixed, resampled and counted frame by frame, so a small file that decodes to hours of
silence takes no more memory than the longest allowed one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import msgspec
import numpy as np

from baton.errors import InvalidRequest
from baton_mm_preprocess.audio.downmix import MAX_CHANNELS, Samples, weights
from baton_mm_preprocess.av_container import first_stream, opened
from baton_mm_preprocess.media_errors import damaged, exceeds

FORMATS = ("wav", "mp3", "flac", "ogg", "webm", "m4a")
CODECS = frozenset(
    (
        *("aac", "alac", "flac", "libopus", "libvorbis", "mp1float", "mp2float", "mp3", "mp3float"),
        *("opus", "pcm_alaw", "pcm_f32le", "pcm_f64le", "pcm_mulaw", "pcm_s16le", "pcm_s24le"),
        *("pcm_s32le", "pcm_u8", "vorbis"),
    )
)
"""FFmpeg's names of the allowed decoders."""
RATES = (1000, 384_000)
"""Lowest and highest sample rate of a file, in Hz."""
MIN_SECONDS = 0.1
"""Shortest sound, as in OpenAI's API."""
_ATOMS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
"""Types of the first box of an MP4 file."""
_FILTER = {"filter_size": "64"}
"""Options of libswresample: its default of 32 taps loses half of the band from 90 % of the Nyquist
frequency on."""


class AudioLimits(msgspec.Struct, frozen=True):
    """Limits of a sound."""

    max_seconds: float
    max_channels: int = MAX_CHANNELS


def decode(data: bytes, rate: int, limits: AudioLimits) -> Samples:
    """Decode the first sound of a file.

    Args:
        rate: samples per second of the result.

    Returns:
        float32 [samples], about -1 to 1.

    Raises:
        InvalidRequest: it is not one of `FORMATS`, is damaged, exceeds a limit, or is shorter than
            `MIN_SECONDS`.
    """
    with opened(data, _demuxer(data), CODECS, "audio") as container:
        return _decoded(container, rate, limits)


def decode_track(data: bytes, demuxer: str, rate: int, limits: AudioLimits) -> Samples | None:
    """Decode the sound of a video; None if it has none.

    Args:
        demuxer: FFmpeg's name of its container.

    Returns and raises as `decode`.
    """
    with opened(data, demuxer, CODECS, "audio") as container:
        return _decoded(container, rate, limits) if container.streams.audio else None


def _decoded(container: Any, rate: int, limits: AudioLimits) -> Samples:
    stream = _checked_stream(container, limits)
    parts, count = list[Samples](), 0
    for part in _resampled(container, stream, rate):
        parts.append(part)
        count += len(part)
        _check_length(count / rate, limits)
    if count < MIN_SECONDS * rate:
        raise InvalidRequest(
            f"Audio file is too short. Minimum audio length is {MIN_SECONDS} seconds.",
            code="audio_too_short",
        )
    return np.concatenate(parts)


def _checked_stream(container: Any, limits: AudioLimits) -> Any:
    """The first sound of a container, whose decoder, rate and channels are allowed."""
    stream = first_stream(container, "audio", CODECS, "WAV, MP3, FLAC, Opus, Vorbis or AAC")
    context = stream.codec_context
    _check_signal(context.sample_rate, context.channels, limits)
    _check_length(_seconds(container, stream), limits)
    return stream


def _seconds(container: Any, stream: Any) -> float:
    """Duration according to the header; 0 if it has none."""
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration else 0.0


def _resampled(container: Any, stream: Any, rate: int) -> Iterator[Samples]:
    """Yield the sound in parts: mixed to one channel, then resampled."""
    packed = av.AudioResampler(format="flt")
    mono = av.AudioResampler(format="flt", layout="mono", rate=rate, options=_FILTER)
    first: Any = None
    for frame in container.decode(stream):
        first = first or frame
        if (frame.sample_rate, frame.layout.name) != (first.sample_rate, first.layout.name):
            raise damaged("audio")
        for floats in packed.resample(frame):
            for part in mono.resample(_mixed(floats)):
                yield part.to_ndarray()[0]
    if first is not None:
        for part in mono.resample(None):
            yield part.to_ndarray()[0]


def _mixed(frame: Any) -> Any:
    """Convert a frame of packed floats to one channel, continuing the previous frame's timestamps.

    Not of planes: PyAV reads a ninth one behind eight.
    """
    names = [channel.name for channel in frame.layout.channels]
    planes = frame.to_ndarray().reshape(-1, len(names)).T
    with np.errstate(invalid="ignore", over="ignore"):
        samples = weights(names)[None] @ planes
    if not np.isfinite(samples).all():
        raise damaged("audio")
    mixed = av.AudioFrame.from_ndarray(samples, format="flt", layout="mono")
    mixed.sample_rate = frame.sample_rate
    return mixed


def _check_signal(rate: int, channels: int, limits: AudioLimits) -> None:
    if not RATES[0] <= rate <= RATES[1]:
        raise _invalid(f"has {rate} samples per second, not {RATES[0]} to {RATES[1]}")
    if not 1 <= channels <= limits.max_channels:
        raise _invalid(f"has {channels} channels, not 1 to {limits.max_channels}")


def _check_length(seconds: float, limits: AudioLimits) -> None:
    if seconds > limits.max_seconds:
        raise exceeds("audio", f"is longer than {limits.max_seconds:g} s")


def _demuxer(data: bytes) -> str:
    """FFmpeg's name of the container. Raises `InvalidRequest` for one that is not supported."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data.startswith(b"fLaC"):
        return "flac"
    if data.startswith(b"OggS"):
        return "ogg"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if data[4:8] in _ATOMS:
        return "mp4"
    if data.startswith(b"ID3") or _is_mpeg(data):
        return "mp3"
    raise InvalidRequest(
        "You uploaded an unsupported audio file. Please make sure your audio has one of the "
        f"following formats: {list(FORMATS)}.",
        code="invalid_audio_format",
    )


def _is_mpeg(data: bytes) -> bool:
    """Whether the data begins with an MPEG audio frame of layer 1, 2 or 3: 11 bits of sync and a
    nonzero layer, which AAC in ADTS does not have."""
    return len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 != 0


def _invalid(how: str) -> InvalidRequest:
    return InvalidRequest(f"The audio {how}.", code="invalid_value")
