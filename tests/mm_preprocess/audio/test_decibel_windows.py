"""Spectrograms in decibels, against transformers' tools."""

from __future__ import annotations

import numpy as np
from transformers import Wav2Vec2FeatureExtractor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from baton_mm_preprocess.audio.decibel_windows import DecibelWindows
from baton_mm_preprocess.audio.readers import AudioFiles
from baton_mm_preprocess.audio.windowed_readers import midasheng_lm
from tests.support.sounds import tones

FILTERS = mel_filter_bank(257, 64, 0.0, 8000.0, 16_000, norm=None, mel_scale="htk")


def decibels(sound: np.ndarray) -> np.ndarray:
    found: np.ndarray = spectrogram(
        sound.astype(np.float64),
        window_function(512, "hann"),
        frame_length=512,
        hop_length=160,
        power=2.0,
        mel_filters=FILTERS,
        mel_floor=1e-10,
        log_mel="dB",
        db_range=120.0,
    )
    return found


def test_windows_of_whole_states() -> None:
    """Frames that make no state are left out; hops say whether the last state is seen."""
    windows = DecibelWindows(window_frames=100)
    for samples, hops in ((3200, 20), (3679, 20), (3680, 23), (16_000, 100), (40_100, 248)):
        sound = tones(4.0, seed=3)[:samples]
        found, wanted = windows(sound), decibels(sound)
        states = (1 + samples // 160) // 4
        assert found.num_frames == hops and found.num_tokens == states // 5
        assert ((hops + 1) // 4, hops // 4) == (states, samples // 640)
        flat = found.features.transpose(1, 0, 2).reshape(64, -1)
        assert np.abs(flat[:, : 4 * states] - wanted[:, : 4 * states]).max() < 1e-3
        assert not flat[:, 4 * states :].any() and found.grid == (-(-states // 25), hops, 0)


def test_settings_and_short_sounds() -> None:
    config = {"audio_encoder_config": {"patch_size": [64, 4], "target_length": 1008}}
    reader = midasheng_lm(AudioFiles(config | {"subsample_factor": 4}, {"do_normalize": False}))
    assert reader == DecibelWindows(stack=4)
    normalised = midasheng_lm(AudioFiles(config, {}))
    assert isinstance(normalised, DecibelWindows) and normalised.normalised
    sound = np.pad(tones(0.1, seed=4), (0, 1600))
    raw = Wav2Vec2FeatureExtractor(do_normalize=True)(sound, sampling_rate=16_000)
    wanted = decibels(np.asarray(raw["input_values"][0]))[:, :20]
    found = normalised(sound[:1600])
    assert found.num_tokens == 1 and np.abs(found.features[0] - wanted).max() < 1e-2
