"""Samples as a file."""

from __future__ import annotations

import io
import wave

from baton_gateway.speech.audio_buffer import AudioBuffer


def test_a_file_has_the_samples_and_silence() -> None:
    buffer = AudioBuffer(8000)
    buffer.data += bytes(range(250)) * 8
    assert buffer.seconds == 0.125
    buffer.drop(0.0625)
    for least, silence in ((0.0, 0), (0.0625, 0), (0.1, 300)):
        with wave.open(io.BytesIO(buffer.wav(least))) as file:
            assert file.getparams()[:4] == (1, 2, 8000, 500 + silence)
            assert file.readframes(1000) == bytes(range(250)) * 4 + bytes(2 * silence)
