"""Log-mel spectrograms against those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from baton_mm_preprocess.audio.spectrum import LogMel, mel_filters
from tests.support.sounds import tones


@pytest.mark.row("F02.01")
def test_spectrograms_equal_those_of_whisper() -> None:
    """Against both of its implementations; that in float32 does not reach the quietest values of a
    sound without noise."""
    hiss = np.random.default_rng(0).normal(0, 1e-2, 480_000).astype(np.float32)
    sounds = [
        tones(30.0, top=7900.0) + hiss,
        10 * hiss,
        np.zeros(480_000, np.float32),
        np.pad(tones(1.7), (0, 480_000 - 27_200)) + hiss,
    ]
    for mels in (80, 128):
        reference = WhisperFeatureExtractor(mels)
        for sound in sounds:
            wanted = reference(sound, sampling_rate=16_000, return_tensors="np")["input_features"]
            found = LogMel(mels)(sound)
            assert found.shape == (mels, 3000) and found.dtype == np.float32
            assert np.abs(found - wanted[0]).max() < 1e-4
    for quiet in (tones(30.0), np.pad(tones(1.7), (0, 100_000))):
        [wanted] = reference._np_extract_fbank_features(quiet[None], "cpu")
        assert np.abs(LogMel(128)(quiet) - wanted).max() < 1e-5


@pytest.mark.row("F02.01")
def test_other_windows_and_rates() -> None:
    """Blocks of frames and filters of other sizes."""
    sound = tones(1.0, 24_000)
    reference = WhisperFeatureExtractor(
        64, sampling_rate=24_000, n_fft=512, hop_length=240, chunk_length=1
    )
    wanted = reference(sound, sampling_rate=24_000, return_tensors="np")["input_features"][0]
    spectrum = LogMel(64, 512, 240, 24_000)
    assert mel_filters(spectrum).shape == (257, 64)
    assert np.abs(spectrum(sound) - wanted).max() < 1e-4
