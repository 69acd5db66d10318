"""Numbers of embeddings that follow from the length of a sound, as Fun-Audio-Chat's processor has
them."""

from __future__ import annotations

import numpy as np
from transformers import WhisperFeatureExtractor

from baton_mm_preprocess.audio.grouped_windows import GroupedWindows
from baton_mm_preprocess.audio.readers import AudioFiles
from baton_mm_preprocess.audio.windowed_readers import fun_audio_chat
from tests.support.sounds import tones


def test_groups_of_frames() -> None:
    """Of states there are as many or one more; the features are those of the encoder."""
    settings = {"feature_size": 16, "chunk_length": 4}
    reader = fun_audio_chat(AudioFiles({"audio_config": {"n_window": 50}}, settings))
    assert isinstance(reader, GroupedWindows) and reader.rate == 16_000
    extractor = WhisperFeatureExtractor(16, chunk_length=4)
    dropped = set()
    for samples in (1600, 16_000, 16_200, 16_350, 16_500, 18_560, 19_300, 40_000):
        sound = tones(3.0, seed=6)[:samples]
        wanted = extractor(
            sound,
            sampling_rate=16_000,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="np",
        )
        found, frames = reader(sound), int(wanted["attention_mask"].sum())
        flat = found.features.transpose(1, 0, 2).reshape(16, -1)
        assert np.abs(flat[:, :frames] - wanted["input_features"][0][:, :frames]).max() < 1e-4
        codes = max(1, int(samples / 16_000 * 25))
        states = ((frames - 1) // 2 + 1) // 2
        assert found.num_frames == frames and found.num_tokens == -(-codes // 5)
        assert found.grid == (len(found.features), frames, -(-states // 5) - found.num_tokens)
        dropped.add(found.num_dropped)
    assert dropped == {0, 1}
