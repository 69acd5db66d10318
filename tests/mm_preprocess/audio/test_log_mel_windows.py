"""Windows of spectrograms, against transformers' extractors."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from baton.errors import InvalidRequest
from baton_mm_preprocess.audio.log_mel_windows import LogMelWindows
from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.readers import AudioFiles
from baton_mm_preprocess.audio.spectrum import Features
from baton_mm_preprocess.audio.windowed_readers import qwen2_5_omni, qwen3_asr, qwen3_omni
from tests.support.sounds import tones

SOUNDS = [tones(2.3)[:samples] for samples in (1600, 16_000, 16_077, 36_001)]
FILES = AudioFiles({}, {"feature_size": 16, "chunk_length": 3})


@pytest.mark.row("F01.33", "A04", "A05", "A06")
def test_features_are_those_of_transformers() -> None:
    """Padded with silence up to the longest sound, as long as the sound, and half a second at
    least."""
    plain = WhisperFeatureExtractor(16, chunk_length=3)
    given = {"sampling_rate": 16_000, "return_attention_mask": True, "return_tensors": "np"}
    for sound in SOUNDS:
        wanted = plain(sound, padding="max_length", **given)
        frames = _same(qwen2_5_omni(FILES)(sound), wanted)
        assert qwen2_5_omni(FILES).num_tokens(frames) == ((frames - 1) // 2 + 1 - 2) // 2 + 1
        wanted = plain(sound, padding=True, truncation=False, **given)
        frames = _same(qwen3_omni(FILES)(sound), wanted)
        assert qwen3_omni(FILES).num_tokens(frames) == _of_three_convolutions(frames)
        wanted = Qwen3ASRFeatureExtractor(16)(sound, padding=True, **given)
        frames = _same(qwen3_asr(FILES)(sound), wanted)
        assert qwen3_asr(FILES).num_tokens(frames) == _of_three_convolutions(frames)
        assert qwen3_asr(FILES)(sound).features.shape[2] == 100


def test_what_is_sent() -> None:
    one, many = (qwen3_omni(FILES)(sound).features.shape for sound in SOUNDS[::3])
    assert (one, many) == ((1, 16, 10), (3, 16, 100))
    assert qwen2_5_omni(FILES)(SOUNDS[0]).features.shape == (1, 16, 200)
    with pytest.raises(InvalidRequest, match="longer than the 2 s"):
        LogMelWindows(qwen3_omni(FILES).spectrum, 100, 3, max_seconds=2)(SOUNDS[3])


def _same(found: ProcessedAudio, wanted: dict[str, Features]) -> int:
    """Compare the frames that are no padding; returns their number."""
    frames = int(wanted["attention_mask"].sum())
    assert found.num_frames == frames and found.grid == (len(found.features), frames, 0)
    whole = found.features.transpose(1, 0, 2).reshape(16, -1)
    assert np.abs(whole[:, :frames] - wanted["input_features"][0][:, :frames]).max() < 1e-4
    assert not whole[:, frames:].any()
    return frames


def _of_three_convolutions(frames: int) -> int:
    rest = frames % 100
    for _ in range(3):
        rest = (rest + 1) // 2
    return rest + frames // 100 * 13
