"""Decoding of sounds: what is read, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess.audio.decode import AudioLimits, decode, decode_track
from baton_mm_preprocess.video.decode import demuxer
from tests.support.sounds import Sound, encoded, tones
from tests.support.video_clips import encoded as clip
from tests.support.video_clips import moving

RATE = 16_000
LIMITS = AudioLimits(10.0)
CHORD = tones(1.0)


def _error(found: Sound, wanted: Sound) -> float:
    """Root of the mean square of the difference, as a share of the sound's."""
    length = min(len(found), len(wanted))
    rest = (found[:length] - wanted[:length])[400:-400]
    return float(np.sqrt(np.mean(rest**2)) / np.sqrt(np.mean(wanted**2)))


def test_the_sound_of_a_video() -> None:
    """In every container, whatever its frames are encoded as; None where there is none."""
    frames = moving(8, 16, 48)
    for form, codec, sound, most in (
        ("mp4", "libx264", "aac", 0.2),
        ("mov", "mpeg4", "pcm_s16le", 1e-3),
        ("matroska", "libx264", "pcm_s16le", 1e-3),
        ("webm", "libvpx-vp9", "libopus", 0.2),
        ("avi", "mpeg4", "pcm_s16le", 1e-3),
    ):
        file = clip(frames, codec=codec, form=form, sound=CHORD, sound_codec=sound)
        found = decode_track(file, demuxer(file), RATE, LIMITS)
        assert found is not None and _error(found, CHORD) < most, form
    file = clip(frames)
    assert decode_track(file, demuxer(file), RATE, LIMITS) is None
    file = clip(frames, form="matroska", sound=CHORD, sound_codec="wavpack")
    with pytest.raises(InvalidRequest, match="encoded as wavpack"):
        decode_track(file, demuxer(file), RATE, LIMITS)


@pytest.mark.row("F02.02")
def test_files_of_every_format() -> None:
    """What is stored without loss comes back but for its rounding."""
    for form, codec, most in (
        ("wav", "pcm_s16le", 1e-3),
        ("wav", "pcm_s24le", 1e-5),
        ("wav", "pcm_f32le", 1e-7),
        ("wav", "pcm_u8", 0.1),
        ("wav", "pcm_mulaw", 0.1),
        ("flac", "flac", 1e-3),
    ):
        found = decode(encoded(CHORD, codec=codec, form=form), RATE, LIMITS)
        assert found.dtype == np.float32 and len(found) == len(CHORD), codec
        assert _error(found, CHORD) < most, codec


@pytest.mark.row("F02.02")
def test_files_with_loss() -> None:
    """MP3, Opus and AAC: the spectrum is that of the sound, whatever their delay."""
    loud = tones(1.0, 48_000, top=2500)
    wanted = np.abs(np.fft.rfft(tones(1.0, top=2500)[1600:14_400]))
    for form, codec in (
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("webm", "libopus"),
        ("ipod", "aac"),
    ):
        stereo = encoded(np.stack([loud, loud]), 48_000, codec=codec, form=form, layout="stereo")
        found = decode(stereo, RATE, LIMITS)
        assert abs(len(found) - RATE) < 1200, form
        spectrum = np.abs(np.fft.rfft(found[1600:14_400]))
        assert np.corrcoef(spectrum, wanted)[0, 1] > 0.98, form


@pytest.mark.row("F02.03")
def test_resampling_is_within_its_error_bound() -> None:
    """Tones below 80 % of the lower Nyquist frequency, against the same tones computed at 16 kHz;
    what lies above it is gone."""
    for rate, top in ((48_000, 6400.0), (44_100, 6400.0), (22_050, 6400.0), (8000, 3200.0)):
        file = encoded(tones(1.0, rate, top=top), rate, codec="pcm_f32le")
        found = decode(file, RATE, LIMITS)
        assert len(found) == RATE
        assert _error(found, tones(1.0, top=top)) < 1e-4, rate
    times = np.arange(48_000) / 48_000
    hiss = np.sin(2 * np.pi * 9000 * times).astype(np.float32)
    found = decode(encoded(hiss, 48_000, codec="pcm_f32le"), RATE, LIMITS)
    assert np.abs(found[400:-400]).max() < 1e-4


def test_channels_are_mixed_as_a_listener_hears_them() -> None:
    """CVE-2026-34760: speech in the channel of low frequencies alone is not heard, and a mean would
    let it pass."""
    planes = np.zeros((6, RATE), np.float32)
    planes[3] = CHORD
    hidden = encoded(planes, codec="pcm_f32le", layout="5.1")
    assert np.abs(decode(hidden, RATE, LIMITS)).max() == 0
    planes[2], planes[3] = CHORD, 0
    centre = decode(encoded(planes, codec="pcm_f32le", layout="5.1"), RATE, LIMITS)
    assert _error(centre, CHORD / (2 + 2 * 0.5**0.5)) < 1e-6
    header = struct.pack("<HHIIHH", 3, 8, RATE, 32 * RATE, 32, 32)
    eight = np.stack([0 * CHORD, 0 * CHORD, CHORD, CHORD, *[0 * CHORD] * 4], axis=1).tobytes()
    chunks = b"WAVEfmt \x10\0\0\0" + header + b"data" + struct.pack("<I", len(eight)) + eight
    surround = b"RIFF" + struct.pack("<I", len(chunks)) + chunks
    assert _error(decode(surround, RATE, LIMITS), CHORD / (3 + 2 * 0.5**0.5)) < 1e-6
    pair = np.stack([CHORD, np.zeros_like(CHORD)])
    found = decode(encoded(pair, codec="pcm_s24le", layout="stereo"), RATE, LIMITS)
    assert _error(found, CHORD / 2) < 1e-4


def test_what_is_refused() -> None:
    wav = encoded(CHORD)
    for data, code in (
        (b"", "invalid_audio_format"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "invalid_audio_format"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "invalid_audio_format"),
        (b"MZ" + bytes(200), "invalid_audio_format"),
        (b"\xff\xf1" + bytes(200), "invalid_audio_format"),
        (b"fLaC" + bytes(200), "audio_parse_error"),
        (b"RIFF\0\0\0\0WAVE" + bytes(200), "audio_parse_error"),
        (_with(wav, 22, "<H", 65_535), "invalid_value"),
        (_with(wav, 22, "<H", 9), "invalid_value"),
        (_with(wav, 24, "<I", 1_000_000_000), "invalid_value"),
        (_with(wav, 24, "<I", 10), "invalid_value"),
        (wav[: wav.index(b"data") + 8], "audio_too_short"),
        (encoded(tones(0.05)), "audio_too_short"),
        (encoded(tones(11.0)), "audio_too_large"),
        (_nan(), "audio_parse_error"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            decode(data, RATE, LIMITS)
        assert caught.value.code == code, (data[:16], caught.value.message)


def test_a_length_that_the_header_hides_is_counted() -> None:
    """S12: a stream without a duration is decoded no further than the limit."""
    silence = np.zeros((2, 48_000 * 12), np.float32)
    file = encoded(silence, 48_000, codec="libopus", form="webm", layout="stereo")
    place = file.index(b"\x44\x89")  # The element Duration of Matroska, and its float64.
    hidden = file[: place + 3] + struct.pack(">d", 1000.0) + file[place + 11 :]
    with pytest.raises(InvalidRequest, match="longer than 10 s") as caught:
        decode(hidden, RATE, LIMITS)
    assert caught.value.code == "audio_too_large"


def _with(wav: bytes, place: int, form: str, value: int) -> bytes:
    """A WAV file with another number in its header."""
    return wav[:place] + struct.pack(form, value) + wav[place + struct.calcsize(form) :]


def _nan() -> bytes:
    return encoded(np.full(RATE, np.nan, np.float32), codec="pcm_f32le")


def test_no_file_is_more_than_refused() -> None:
    """Mutations of files: finite samples, or an error with words for a client."""
    random, sound = np.random.default_rng(0), tones(0.3, 48_000)
    forms = (("wav", "pcm_f32le"), ("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"))
    files = [encoded(sound, 48_000, codec=codec, form=form) for form, codec in forms]
    heard = 0
    for number in range(400):
        file = bytearray(files[number % len(files)])
        for place in random.integers(12, 300, random.integers(1, 6)):
            file[place : place + random.integers(0, 2)] = random.bytes(random.integers(0, 3))
        try:
            found = decode(bytes(file), RATE, LIMITS)
        except InvalidRequest as error:
            assert error.code, error.message
        else:
            heard += 1
            assert np.isfinite(found).all()
    assert 0 < heard < 400
