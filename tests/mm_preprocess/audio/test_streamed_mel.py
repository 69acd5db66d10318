"""Spectrograms of sounds that go along with tokens, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import VoxtralRealtimeFeatureExtractor

from baton.errors import ModelError
from baton_mm_preprocess.audio.readers import audio_files
from baton_mm_preprocess.audio.windowed_readers import voxtral_realtime
from tests.support.sounds import tones


@pytest.mark.row("A12")
def test_frames_with_silence_around_them(tmp_path: Path) -> None:
    """The loudest value is that of the files, whatever the sound's."""
    extractor = VoxtralRealtimeFeatureExtractor(feature_size=16)
    extractor.save_pretrained(tmp_path)
    processor = voxtral_realtime(audio_files(tmp_path, "m", {"default_num_delay_tokens": 2}))
    for count in (1600, 2560, 20_001):
        sound = tones(1.3)[:count]
        padded = np.pad(sound, (32 * 1280, -count % 1280 + 13 * 1280))
        wanted = extractor([padded], sampling_rate=16_000, return_tensors="np")["input_features"]
        found = processor(sound)
        assert found.features.shape == wanted.shape == (1, 16, 8 * found.num_tokens)
        assert found.num_tokens == 45 + -(-count // 1280)
        assert np.abs(found.features - wanted).max() < 1e-4
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"global_log_mel_max": None}))
    with pytest.raises(ModelError, match="no global_log_mel_max"):
        voxtral_realtime(audio_files(tmp_path, "m", {}))
